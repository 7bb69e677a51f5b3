#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# tests/libclient/api/ffi.py LIBRARY: cffi reads the public headers without a preprocessor, as
# kvtrunk_types.h says. It must get what the C compiler gets: the size of each struct, the place of
# each field, each constant, and working functions. Needs python3 with cffi; skips without it.
import os
import re
import subprocess
import sys
import tempfile

DISTRIBUTION = "/usr/bin/python3"  # for which python3-cffi is installed

try:
    import cffi
except ImportError:
    if sys.executable != DISTRIBUTION and os.path.exists(DISTRIBUTION):
        os.execv(DISTRIBUTION, [DISTRIBUTION, *sys.argv])
    print("skip: python3 has no cffi (apt-get install python3-cffi)")
    sys.exit(77)

HEADERS = [f"include/kvtrunk_{part}.h" for part in
           ("types", "client", "pool", "group", "operations", "sequences", "keys")]
NUMBER = re.compile(r"#define \w+ -?(0x)?[0-9a-f]+u?$", re.I)


def plain(path):
    """The declarations of a header: no comments, no __cplusplus, of # only #define NAME number."""
    with open(path, encoding="ascii") as header:
        text = re.sub(r"/\*.*?\*/", "", header.read(), flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    text = text.replace("\\\n", " ")
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(line for line in lines if not line.startswith("#") or NUMBER.match(line))


def layout(ffi, text):
    """C statements that print what ffi believes of structs and constants, and what it believes."""
    statements, beliefs = [], []
    for name in re.findall(r"^struct (\w+) \{", text, re.M):
        kind = ffi.typeof("struct " + name)
        statements.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        beliefs.append(f"{name} {ffi.sizeof(kind)}")
        for field, member in kind.fields or ():
            statements.append(f'printf("{name}.{field} %zu\\n",'
                              f' offsetof(struct {name}, {field}));')
            beliefs.append(f"{name}.{field} {member.offset}")
    names = re.findall(r"^#define (\w+)", text, re.M)
    for kind in re.findall(r"^enum (\w+) \{", text, re.M):
        names += ffi.typeof("enum " + kind).relements
    library = ffi.dlopen(os.path.realpath(sys.argv[1]))
    for name in names:
        statements.append(f'printf("{name} %lld\\n", (long long){name});')
        beliefs.append(f"{name} {getattr(library, name)}")
    return statements, beliefs


def compiled(statements):
    """What a C program says that includes the headers."""
    with tempfile.TemporaryDirectory() as work:
        with open(work + "/layout.c", "w", encoding="ascii") as source:
            source.write("#include <stdio.h>\n#include <string.h>\n#include \"kvtrunk.h\"\n"
                         "#include \"kvtrunk_keys.h\"\nint main(void)\n{\n"
                         + "\n".join(statements) + "\nreturn 0;\n}\n")
        subprocess.run([os.environ.get("CC", "gcc"), "-Iinclude", work + "/layout.c", "-o",
                        work + "/layout"], check=True)
        return subprocess.run([work + "/layout"], check=True, capture_output=True,
                              text=True).stdout.splitlines()


def main():
    with open(sys.argv[1], "rb") as library:
        if re.search(b"__[at]san_init", library.read()):
            print("skip: python3 cannot load a library that has a sanitizer")
            return 77
    ffi = cffi.FFI()
    text = "\n".join(plain(path) for path in HEADERS)
    ffi.cdef(text)
    statements, beliefs = layout(ffi, text)
    said = compiled(statements)
    problems = [f"the compiler says {a}, cffi {b}" for a, b in zip(said, beliefs) if a != b]
    if len(said) != len(beliefs) or len(said) < 300:
        problems.append(f"{len(said)} facts of {len(beliefs)}")

    library = ffi.dlopen(os.path.realpath(sys.argv[1]))
    for name in re.findall(r"\b(kvt_\w+)\(", text):
        if not hasattr(library, name):
            problems.append(f"{name}() is not exported")
    options = ffi.new("struct kvt_options *", {"page_size": 7})
    library.kvt_options_init(options, ffi.sizeof("struct kvt_options"))
    fence = library.kvt_fence_idle()
    if options.size != ffi.sizeof("struct kvt_options") or options.page_size != 0:
        problems.append("kvt_options_init()")
    if fence.slot != library.KVT_FENCE_IDLE or fence.value != 0:
        problems.append("kvt_fence_idle()")
    fields = ffi.new("struct kvt_namespace_fields *",
                     {"salt": {"kind": library.KVT_FIELD_NUMBER, "number": 9}})
    digest = ffi.new("uint64_t[2]")
    if library.kvt_namespace_digest(fields, digest) != 0 or digest[0] == 0:
        problems.append("kvt_namespace_digest()")
    if ffi.string(library.kvt_reason_name(library.KVT_REASON_LEASES)) != b"leases":
        problems.append("kvt_reason_name()")
    print("\n".join(problems) or f"{len(said)} facts agree")
    return 1 if problems else 0


sys.exit(main())
