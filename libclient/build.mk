# SPDX-License-Identifier: Apache-2.0
# libkvtrunk: shared, static, pkg-config. Tests build their own with protocol
# steps (libclient/client.h).

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
LIBKVTRUNK_SONAME := libkvtrunk.so.0
LIBKVTRUNK_OBJ := $(CLIENT_OBJ) $(SHM_OBJ)

$(O)/libkvtrunk.so: $(LIBKVTRUNK_OBJ) libclient/libkvtrunk.map
	$(if $(V),,@echo "  LD  $@" && )$(CC) -shared $(LDFLAGS_BASE) \
		-Wl,-soname,$(LIBKVTRUNK_SONAME) -Wl,-z,defs -Wl,-z,relro -Wl,-z,now \
		-Wl,--version-script=libclient/libkvtrunk.map $(LIBKVTRUNK_OBJ) -o $@
	@ln -sf libkvtrunk.so $(O)/$(LIBKVTRUNK_SONAME)

$(O)/libkvtrunk.a: $(LIBKVTRUNK_OBJ)
	@rm -f $@
	@$(AR) rcs $@ $^

$(O)/libkvtrunk.pc: libclient/libkvtrunk.pc.in
	@mkdir -p $(@D)
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
		$< > $@
