# SPDX-License-Identifier: Apache-2.0
#
# The Python package (python/).
#
#   make wheel           build/wheel/kvtrunk-*.whl, with kvtrunkd, kvtctl, kvtlab and kvtstored
#   make wheel-programs  these alone, linked so that they need nothing but glibc
#   make python          the package in build/python/lib, for PYTHONPATH
#   make bench-python    what the package adds to calls, beside C

PYTHON_CAN := import cffi, setuptools, wheel
PYTHON ?= $(shell for p in python3 /usr/bin/python3; do \
	$$p -c '$(PYTHON_CAN)' 2>/dev/null && echo $$p && exit; done; echo python3)
WHEEL := $(O)/wheel
WHEEL_PROGRAMS := $(addprefix $(WHEEL)/,kvtrunkd kvtctl kvtlab kvtstored)
SETUP_PY = cd python && KVTRUNK_BUILD=$(abspath $(O)) $(PYTHON) -W ignore setup.py -q

wheel-programs: $(WHEEL_PROGRAMS)

# For python/setup.py: one name wherever $(O) is.
python-library: $(O)/libkvtrunk.a

wheel_link = @mkdir -p $(@D) && $(if $(V),,echo "  LD  $@" && )$(CC) -s $(LDFLAGS_BASE) $^ \
	-Wl,-Bstatic $(1) -Wl,-Bdynamic -lm -ldl -o $@

$(WHEEL)/kvtrunkd: $(DAEMON_OBJ) $(CORE_OBJ) $(SHM_OBJ) $(PROGRAM_OBJ)
	$(call wheel_link,-luring -linih -lbsd -lmd)

$(WHEEL)/kvtctl: $(O)/obj/tools/kvtctl.o $(O)/libkvttools.a $(O)/libkvtbase.a \
		$(O)/libkvtrunk.a $(PROGRAM_OBJ)
	$(call wheel_link,-ljansson)

$(WHEEL)/kvtlab: $(O)/obj/lab/main.o $(OPLOG_OBJ) $(O)/libkvtlab.a $(O)/libkvtbase.a \
		$(O)/libkvtrunk-steps.a $(PROGRAM_OBJ)
	$(call wheel_link,-ljansson -lz)

$(WHEEL)/kvtstored: $(O)/obj/store/main.o $(O)/libkvtstore.a $(O)/libkvtbase.a $(O)/libkvtrunk.a \
		$(PROGRAM_OBJ)
	$(call wheel_link,-luring -lpthread)

python: $(O)/libkvtrunk.a
	@$(python_check)
	@mkdir -p $(O)/python
	@$(SETUP_PY) build_py --build-lib $(abspath $(O))/python/lib build_ext --build-lib \
		$(abspath $(O))/python/lib --build-temp $(abspath $(O))/python/temp

wheel: $(O)/libkvtrunk.a $(WHEEL_PROGRAMS)
	@$(python_check)
	@mkdir -p $(O)/python
	@rm -rf $(O)/python/bdist $(O)/python/base $(WHEEL)/*.whl
	@KVTRUNK_PROGRAMS=require; export KVTRUNK_PROGRAMS; $(SETUP_PY) bdist_wheel \
		--bdist-dir $(abspath $(O))/python/bdist --dist-dir $(abspath $(WHEEL))
	@echo "kvtrunk: $(WHEEL)/$$(cd $(WHEEL) && echo *.whl)"

define python_check
$(PYTHON) -c '$(PYTHON_CAN)' 2>/dev/null || { echo "kvtrunk: $(PYTHON) lacks cffi, setuptools or \
	wheel. Install: apt-get install python3-dev python3-cffi python3-setuptools \
	python3-wheel  (or: make setup)" >&2; exit 1; }
endef

bench-python: python $(O)/kvtrunkd $(O)/kvtctl
	@KVTRUNK_BIN=$(abspath $(O)) PYTHONPATH=$(abspath $(O))/python/lib $(PYTHON) \
		bench/python/overhead.py

.PHONY: bench-python python python-library wheel wheel-programs
