/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtrunk._view.Array: strided memory that is somebody else's, as Python's array libraries take it:
 * the buffer protocol (numpy.asarray, memoryview) and DLPack (torch.from_dlpack).
 *
 * Inputs: an address with shape and strides from kvt_pool_view(), and an owner. Invariants: the
 * owner lives as long as an array, a buffer or a DLPack tensor of it. Callers: pool.py.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 4

/* ---------------------------------------------------------------- DLPack 1.0, its ABI */

struct dl_device {
	int32_t type;
	int32_t id;
};

struct dl_type {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t ndim;
	struct dl_type type;
	int64_t *shape;
	int64_t *strides; /* in elements */
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

struct dl_versioned {
	struct {
		uint32_t major, minor;
	} version;
	void *context;
	void (*deleter)(struct dl_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};

#define DL_READ_ONLY 1u
#define DL_CPU 1
#define DL_CUDA 2

/* ---------------------------------------------------------------- the type */

struct array {
	PyObject_HEAD
	PyObject *owner;
	void *data;
	Py_ssize_t shape[MAX_DIMS];
	Py_ssize_t strides[MAX_DIMS]; /* bytes */
	Py_ssize_t itemsize;
	int ndim;
	int readonly;
	char format[2]; /* of the buffer protocol */
	struct dl_type type;
	struct dl_device device;
	int64_t dl_shape[MAX_DIMS];
	int64_t dl_strides[MAX_DIMS];
};

static Py_ssize_t count(const struct array *self)
{
	Py_ssize_t n = 1;

	for (int i = 0; i < self->ndim; i++)
		n *= self->shape[i];
	return n;
}

static bool contiguous(const struct array *self)
{
	Py_ssize_t stride = self->itemsize;

	for (int i = self->ndim - 1; i >= 0; i--) {
		if (self->shape[i] != 1 && self->strides[i] != stride)
			return false;
		stride *= self->shape[i];
	}
	return true;
}

static int take_numbers(PyObject *tuple, Py_ssize_t *ret_numbers, const char *what)
{
	Py_ssize_t n = PyTuple_Size(tuple);

	if (n < 0)
		return -1;
	if (n < 1 || n > MAX_DIMS) {
		PyErr_Format(PyExc_ValueError, "%s: 1 to %d numbers", what, MAX_DIMS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		ret_numbers[i] = PyLong_AsSsize_t(PyTuple_GetItem(tuple, i));
		if (PyErr_Occurred())
			return -1;
		if (ret_numbers[i] < 0) {
			PyErr_Format(PyExc_ValueError, "%s: negative", what);
			return -1;
		}
	}
	return (int)n;
}

static void array_free(PyObject *object)
{
	struct array *self = (struct array *)object;
	PyTypeObject *type = Py_TYPE(object);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	Py_XDECREF(self->owner);
	release(object);
	Py_DECREF(type);
}

static PyObject *refuse(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)type;
	(void)args;
	(void)kwargs;
	PyErr_SetString(PyExc_TypeError, "arrays come from kvtrunk.Pool");
	return NULL;
}

/* ---------------------------------------------------------------- buffer protocol */

static int get_buffer(PyObject *object, Py_buffer *view, int flags)
{
	struct array *self = (struct array *)object;

	view->obj = NULL;
	if (self->device.type != DL_CPU) {
		PyErr_SetString(PyExc_BufferError, "device memory has no buffer: use DLPack");
		return -1;
	}
	if ((flags & PyBUF_WRITABLE) && self->readonly) {
		PyErr_SetString(PyExc_BufferError, "these pages are mapped to read");
		return -1;
	}
	if (((flags & PyBUF_STRIDES) != PyBUF_STRIDES ||
	     (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS ||
	     (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS ||
	     (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS) && !contiguous(self)) {
		PyErr_SetString(PyExc_BufferError, "this memory is strided");
		return -1;
	}
	if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && self->ndim > 1) {
		PyErr_SetString(PyExc_BufferError, "this memory is not in Fortran's order");
		return -1;
	}
	Py_INCREF(object);
	view->obj = object;
	view->buf = self->data;
	view->len = count(self) * self->itemsize;
	view->itemsize = self->itemsize;
	view->readonly = self->readonly;
	view->ndim = self->ndim;
	view->format = flags & PyBUF_FORMAT ? self->format : NULL;
	view->shape = flags & PyBUF_ND ? self->shape : NULL;
	view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
	view->suboffsets = NULL;
	view->internal = NULL;
	return 0;
}

/* ---------------------------------------------------------------- DLPack */

/* A consumer may call this on any thread, or after the interpreter's end: then nothing is freed. */
static void drop(void *context)
{
	PyGILState_STATE state;

	if (!Py_IsInitialized())
		return;
	state = PyGILState_Ensure();
	Py_DECREF((PyObject *)context);
	PyGILState_Release(state);
}

static void drop_managed(struct dl_managed *managed)
{
	drop(managed->context);
	free(managed);
}

static void drop_versioned(struct dl_versioned *managed)
{
	drop(managed->context);
	free(managed);
}

/* A consumer renames what it takes; the rest is freed here. */
static void capsule_end(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor"))
		drop_managed(PyCapsule_GetPointer(capsule, "dltensor"));
	else if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
		drop_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

static void fill(struct array *self, struct dl_tensor *ret_tensor)
{
	*ret_tensor = (struct dl_tensor){
		.data = self->data,
		.device = self->device,
		.ndim = self->ndim,
		.type = self->type,
		.shape = self->dl_shape,
		.strides = self->dl_strides,
	};
}

static PyObject *capsule_of(struct array *self, bool versioned)
{
	size_t bytes = versioned ? sizeof(struct dl_versioned) : sizeof(struct dl_managed);
	void *managed = calloc(1, bytes);
	PyObject *capsule;

	if (!managed)
		return PyErr_NoMemory();
	if (versioned) {
		struct dl_versioned *new = managed;

		new->version.major = 1;
		new->context = self;
		new->deleter = drop_versioned;
		new->flags = self->readonly ? DL_READ_ONLY : 0;
		fill(self, &new->tensor);
	} else {
		struct dl_managed *old = managed;

		old->context = self;
		old->deleter = drop_managed;
		fill(self, &old->tensor);
	}
	capsule = PyCapsule_New(managed, versioned ? "dltensor_versioned" : "dltensor",
				capsule_end);
	if (!capsule) {
		free(managed);
		return NULL;
	}
	Py_INCREF((PyObject *)self);
	return capsule;
}

static PyObject *get_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "stream", "max_version", "dl_device", "copy", NULL };
	struct array *self = (struct array *)object;
	PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
	int type = self->device.type, id = self->device.id;
	long major = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", names, &stream, &version, &device,
					 &copy))
		return NULL;
	if (copy == Py_True) {
		PyErr_SetString(PyExc_BufferError, "the pool is exported without copies");
		return NULL;
	}
	if (device != Py_None && !PyTuple_Check(device)) {
		PyErr_SetString(PyExc_TypeError, "dl_device is a tuple: (type, number)");
		return NULL;
	}
	if (device != Py_None && !PyArg_ParseTuple(device, "ii", &type, &id))
		return NULL;
	if (type != self->device.type || id != self->device.id) {
		PyErr_SetString(PyExc_BufferError, "the pool is on another device");
		return NULL;
	}
	if (version != Py_None) {
		PyObject *first = PySequence_GetItem(version, 0);

		if (!first)
			return NULL;
		major = PyLong_AsLong(first);
		Py_DECREF(first);
		if (PyErr_Occurred())
			return NULL;
	}
	if (self->readonly && major < 1) {
		PyErr_SetString(PyExc_BufferError, "these pages are mapped to read, which only "
				"DLPack 1.0 can say: use a newer version of the library");
		return NULL;
	}
	return capsule_of(self, major >= 1);
}

static PyObject *get_dlpack_device(PyObject *object, PyObject *ignored)
{
	const struct array *self = (const struct array *)object;

	(void)ignored;
	return Py_BuildValue("(ii)", self->device.type, self->device.id);
}

/* ---------------------------------------------------------------- attributes */

static PyObject *tuple_of(const Py_ssize_t *numbers, int n)
{
	PyObject *tuple = PyTuple_New(n);

	for (int i = 0; tuple && i < n; i++) {
		PyObject *number = PyLong_FromSsize_t(numbers[i]);

		if (!number || PyTuple_SetItem(tuple, i, number) != 0) {
			Py_DECREF(tuple);
			return NULL;
		}
	}
	return tuple;
}

static PyObject *get_shape(PyObject *object, void *ignored)
{
	const struct array *self = (const struct array *)object;

	(void)ignored;
	return tuple_of(self->shape, self->ndim);
}

static PyObject *get_strides(PyObject *object, void *ignored)
{
	const struct array *self = (const struct array *)object;

	(void)ignored;
	return tuple_of(self->strides, self->ndim);
}

static PyObject *get_address(PyObject *object, void *ignored)
{
	(void)ignored;
	return PyLong_FromVoidPtr(((const struct array *)object)->data);
}

static PyObject *get_readonly(PyObject *object, void *ignored)
{
	(void)ignored;
	return PyBool_FromLong(((const struct array *)object)->readonly);
}

static PyObject *get_itemsize(PyObject *object, void *ignored)
{
	(void)ignored;
	return PyLong_FromSsize_t(((const struct array *)object)->itemsize);
}

static PyObject *get_nbytes(PyObject *object, void *ignored)
{
	const struct array *self = (const struct array *)object;

	(void)ignored;
	return PyLong_FromSsize_t(count(self) * self->itemsize);
}

static PyMethodDef array_methods[] = {
	{ "__dlpack__", (PyCFunction)(void (*)(void))get_dlpack, METH_VARARGS | METH_KEYWORDS,
	  "Export without a copy; strides in elements. BufferError: copy=True, another device, or "
	  "memory to read with DLPack before 1.0. The stream is ignored: commits and fences order "
	  "what processes do with pages." },
	{ "__dlpack_device__", get_dlpack_device, METH_NOARGS, "(type, number): (1, 0) is the "
	  "host, 2 CUDA." },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef array_attributes[] = {
	{ "shape", get_shape, NULL, "Elements of each dimension.", NULL },
	{ "strides", get_strides, NULL, "Bytes from an element to the next, by dimension.", NULL },
	{ "address", get_address, NULL, "Of the first element; on a device, a device pointer.",
	  NULL },
	{ "readonly", get_readonly, NULL, "True: mapped to read.", NULL },
	{ "itemsize", get_itemsize, NULL, "Bytes of an element.", NULL },
	{ "nbytes", get_nbytes, NULL, "Bytes of all elements, without those between.", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot array_slots[] = {
	{ Py_tp_dealloc, array_free },
	{ Py_tp_new, refuse },
	{ Py_tp_methods, array_methods },
	{ Py_tp_getset, array_attributes },
	{ Py_bf_getbuffer, get_buffer },
	{ Py_tp_doc, "Memory of the pool, with shape and strides. numpy.asarray(), memoryview() "
		     "and torch.from_dlpack() take it without a copy. It stays valid as long as it "
		     "or an array made of it lives; see kvtrunk.Client.close()." },
	{ 0, NULL },
};

static PyType_Spec array_spec = {
	.name = "kvtrunk._view.Array",
	.basicsize = sizeof(struct array),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = array_slots,
};

static PyObject *array_type;

static PyObject *make(PyObject *module, PyObject *args)
{
	PyObject *owner, *shape, *strides;
	unsigned long long address;
	const char *format;
	int itemsize, code, readonly, device_type, device_id, n;
	struct array *self;
	allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)array_type, Py_tp_alloc);

	(void)module;
	if (!PyArg_ParseTuple(args, "OKO!O!siipii", &owner, &address, &PyTuple_Type, &shape,
			      &PyTuple_Type, &strides, &format, &itemsize, &code, &readonly,
			      &device_type, &device_id))
		return NULL;
	if (itemsize < 1 || itemsize > 8 || strlen(format) != 1) {
		PyErr_SetString(PyExc_ValueError, "no such element");
		return NULL;
	}
	self = (struct array *)allocate((PyTypeObject *)array_type, 0);
	if (!self)
		return NULL;
	n = take_numbers(shape, self->shape, "shape");
	if (n < 0 || take_numbers(strides, self->strides, "strides") != n) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	self->ndim = n;
	self->data = (void *)(uintptr_t)address;
	self->itemsize = itemsize;
	self->readonly = readonly;
	self->format[0] = format[0];
	self->type = (struct dl_type){ (uint8_t)code, (uint8_t)(8 * itemsize), 1 };
	self->device = (struct dl_device){ device_type, device_id };
	for (int i = 0; i < n; i++) {
		self->dl_shape[i] = self->shape[i];
		self->dl_strides[i] = self->strides[i] / itemsize;
	}
	Py_INCREF(owner);
	self->owner = owner;
	return (PyObject *)self;
}

static PyMethodDef module_methods[] = {
	{ "make", make, METH_VARARGS,
	  "make(owner, address, shape, strides, format, itemsize, code, readonly, device_type, "
	  "device_id) -> Array" },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "kvtrunk._view",
	.m_size = -1,
	.m_methods = module_methods,
};

PyMODINIT_FUNC PyInit__view(void)
{
	PyObject *made = PyModule_Create(&module);

	if (!made)
		return NULL;
	array_type = PyType_FromSpec(&array_spec);
	if (!array_type || PyModule_AddObjectRef(made, "Array", array_type) != 0) {
		Py_DECREF(made);
		return NULL;
	}
	return made;
}
