# SPDX-License-Identifier: Apache-2.0
# libkvtrunk: shared, static, pkg-config; and for tests and kvtctl a static one that calls a hook
# at each protocol step (libclient/steps.h).

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

LIBKVTRUNK_STEPS_OBJ := $(patsubst %.c,$(O)/obj/steps/%.o,$(CLIENT_SRC) $(SHM_SRC))
$(O)/obj/steps/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	$(say_cc)$(CC) $(CFLAGS_BASE) $(CFLAGS_libclient) -DKVT_TEST_STEPS -MMD -MP \
		-MT '$$(O)/obj/steps/$*.o' -c $< -o $@

$(O)/libkvtrunk-steps.a: $(LIBKVTRUNK_STEPS_OBJ)
	@rm -f $@
	@$(AR) rcs $@ $^

pkg_config = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
	-e 's|@VERSION@|$(VERSION)|'
$(O)/libkvtrunk.pc: libclient/libkvtrunk.pc.in
$(O)/libkvtkernels.pc: kernels/libkvtkernels.pc.in
$(O)/libkvtrunk.pc $(O)/libkvtkernels.pc:
	@mkdir -p $(@D)
	@$(pkg_config) $< > $@

# The manual of the functions: the headers' comments.
API_HEADERS := $(patsubst %,include/kvtrunk_%.h,client pool sequences operations fetch feed group \
	keys)
$(O)/docs/kvtrunk.3: docs/functions.awk docs/kvtrunk.3.in $(API_HEADERS)
	@mkdir -p $(@D)
	@awk -f $^ >$@.new && mv $@.new $@
