# SPDX-License-Identifier: Apache-2.0
# hello.c is that of docs/c.md, engine.c that of docs/engine-authors.md: built as an application
# would, from the public headers and the library alone.
EXAMPLES += $(O)/hello $(O)/engine

$(O)/hello $(O)/engine: $(O)/%: examples/%.c $(O)/libkvtrunk.a
	$(if $(V),,@echo "  CC  $<" && )$(CC) -std=gnu11 $(WARNINGS) $(OPT) $(SANITIZE) -Iinclude \
		$< $(O)/libkvtrunk.a -o $@

-include $(wildcard examples/*/rules.mk)
