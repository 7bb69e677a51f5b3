# SPDX-License-Identifier: Apache-2.0
# libkvtrunk: shared, static, pkg-config; and for tests a static one with protocol steps.

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
LIBKVTRUNK_SONAME := libkvtrunk.so.0
LIBKVTRUNK_OBJ := $(CLIENT_OBJ) $(SHM_OBJ)

# The same library, but it calls a hook at each protocol step (libclient/client.h).
LIBKVTRUNK_STEPS_OBJ := $(patsubst %.c,$(O)/obj/steps/%.o,$(CLIENT_SRC) $(SHM_SRC))

$(O)/libkvtrunk.so: $(LIBKVTRUNK_OBJ) libclient/libkvtrunk.map
	$(CC) -shared $(LDFLAGS_BASE) -Wl,-soname,$(LIBKVTRUNK_SONAME) -Wl,-z,defs -Wl,-z,relro \
		-Wl,-z,now -Wl,--version-script=libclient/libkvtrunk.map $(LIBKVTRUNK_OBJ) -o $@
	ln -sf libkvtrunk.so $(O)/$(LIBKVTRUNK_SONAME)

$(O)/libkvtrunk.a: $(LIBKVTRUNK_OBJ)
	rm -f $@
	$(AR) rcs $@ $^

$(O)/libkvtrunk-steps.a: $(LIBKVTRUNK_STEPS_OBJ)
	rm -f $@
	$(AR) rcs $@ $^

$(O)/obj/steps/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_BASE) -DKVT_TEST_STEPS -MMD -MP -c $< -o $@

$(O)/libkvtrunk.pc: libclient/libkvtrunk.pc.in
	@mkdir -p $(@D)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
		$< > $@
