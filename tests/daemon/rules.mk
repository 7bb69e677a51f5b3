# SPDX-License-Identifier: Apache-2.0
# Unit tests have the daemon without its main().
$(call programs_of,daemon): $(O)/libkvtdaemon.a
$(call programs_of,daemon): TEST_LIBS = $(DAEMON_LIBS)

# proc: what the daemon does before and around serving, and on hosts that refuse it something.
# restart: it dies, hangs or is upgraded, and its clients continue.
$(call programs_of,daemon/restart): $(call objs,$(addprefix tests/daemon/restart/,trace.c work.c))

# hostile: clients that break every rule, beside one that keeps them.
$(call programs_of,daemon/hostile): $(call objs,tests/daemon/hostile/witness.c)
$(O)/tests/daemon/hostile/test_attacks: $(call objs,$(wildcard bench/attacks/*.c)) \
		$(O)/libkvtlab.a $(O)/libkvtbase.a
