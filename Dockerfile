# SPDX-License-Identifier: Apache-2.0
#
# Daemon, tools and library, with a host pool: docker build -t kvtrunk .
# compose.yaml starts a daemon and two workers of this image.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make pkg-config \
	libbsd-dev libinih-dev libjansson-dev libmicrohttpd-dev liburing-dev zlib1g-dev
COPY . /src
WORKDIR /src
RUN make -j2 O=/build NVCC=none installables /build/hello && \
	make O=/build NVCC=none DESTDIR=/image PREFIX=/usr install && \
	install -D /build/hello /image/usr/lib/kvtrunk/hello

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
	libbsd0 libinih1 libjansson4 libmicrohttpd12 liburing2 zlib1g && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 1500 kvtrunk && useradd --uid 1500 --gid 1500 --no-create-home kvtrunk && \
	install -d -m 750 -o kvtrunk -g kvtrunk /run/kvtrunk
COPY --from=build /image /
RUN ldconfig
USER kvtrunk
CMD ["kvtrunkd", "--supervise"]
