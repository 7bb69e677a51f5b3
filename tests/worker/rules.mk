# SPDX-License-Identifier: Apache-2.0
$(O)/tests/worker/flip: $(O)/obj/tests/worker/flip.o $(O)/libkvtrunk.a
	$(link_test)

TEST_PROGRAMS += $(O)/tests/worker/flip

# The worker's conversion from the library's view of a pool to the kernels', where it is built.
ifeq ($(WORKER_BLAS),yes)
$(O)/tests/worker/test_view: $(O)/obj/tests/worker/test_view.o $(O)/libkvtkernels.a \
		$(WORKER_PARTS) \
		$(O)/libkvtbase.a
	$(link_test) -lopenblas -lpthread -ldl -lm

TEST_PROGRAMS += $(O)/tests/worker/test_view
endif
