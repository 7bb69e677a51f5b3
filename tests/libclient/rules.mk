# SPDX-License-Identifier: Apache-2.0
# Both ends of the rings, the fences and the probe in one process, for ThreadSanitizer:
#     make O=build/tsan OPT='-O1 -g' SANITIZE=-fsanitize=thread tsan
# They are tests without it, too. The client library's tests run with it, and the store's threads.

TSAN_PROGRAMS := $(call programs_of,libclient/tsan)
TEST_PROGRAMS += $(TSAN_PROGRAMS)

# gcc warns that it does not model fences. What they order is atomic, or read by shm/racy.c.
ifneq ($(findstring thread,$(SANITIZE)),)
ifeq ($(findstring clang,$(CC)),)
CFLAGS_BASE += -Wno-tsan
endif
endif

$(TSAN_PROGRAMS): $(O)/tests/libclient/tsan/%: $(O)/obj/tests/libclient/tsan/%.o \
		$(O)/libkvtportable.a
	$(link_test) -lpthread

tsan: $(TSAN_PROGRAMS) $(addprefix $(O)/tests/libclient/test_,ring commit known mirror) \
	$(addprefix $(O)/,kvtrunkd kvtstored kvtctl) \
	$(addprefix $(O)/tests/store/,proc/test_host proc/test_scrub test_workers)
.PHONY: tsan
