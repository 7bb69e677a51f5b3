# SPDX-License-Identifier: Apache-2.0
"""Build the package from a checkout: libkvtrunk.a by make, the bindings by cffi, the programs.

The library and the programs are built by the checkout's Makefile in its build/ folder, or in
$KVTRUNK_BUILD. make does nothing if they are new enough. Without the programs' libraries (see
`make missing`) the package has none: then kvtrunkd must be in PATH. KVTRUNK_PROGRAMS=require makes
that an error, KVTRUNK_PROGRAMS=no leaves them out.
"""
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel
from distutils.command.build_scripts import build_scripts

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PROGRAMS = ["kvtrunkd", "kvtctl", "kvtlab", "kvtstored"]
# Linked into the programs, by Debian's names: build.mk has the same. Their licences want that who
# gets a copy gets their notices.
LINKED = ["liburing", "libinih", "libbsd", "libmd", "libjansson", "zlib1g"]
# Views need the buffer protocol, which is in the limited API since 3.11. All that they call exists
# in 3.10, so a wheel made by 3.11 or newer runs there.
ABI3 = sys.version_info >= (3, 11)

if not (ROOT / "include" / "kvtrunk.h").exists():
    raise SystemExit(f"kvtrunk: {HERE} is not in a checkout of kvtrunk, whose C library is a part "
                     "of this package: install a wheel, or from a checkout (pip install ./python)")
BUILD = pathlib.Path(os.environ.get("KVTRUNK_BUILD") or ROOT / "build").resolve()
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def make(*targets):
    """Run the checkout's make. True if it succeeded."""
    command = ["make", "--no-print-directory", "-j2", "-C", str(ROOT), f"O={BUILD}", "NVCC=none",
               *targets]
    print(" ".join(command), flush=True)
    return subprocess.run(command, env=ENVIRONMENT, check=False).returncode == 0


class BuildExt(build_ext):
    """The extensions, behind the library."""

    def run(self):
        if not make("python-library"):
            raise SystemExit("kvtrunk: libkvtrunk.a could not be built: it needs make, gcc and "
                             "libc6-dev")
        super().run()


class BuildPy(build_py):
    """The modules, and the commit that they are of."""

    def run(self):
        super().run()
        make(str(BUILD / "commit.h"))
        text = (BUILD / "commit.h").read_text("utf-8").split('"')[1]
        (pathlib.Path(self.build_lib) / "kvtrunk" / "commit").write_text(text.strip(), "utf-8")


def notices():
    """Copyrights and licences of what is linked into the programs."""
    texts = []
    for name in LINKED:
        path = pathlib.Path("/usr/share/doc") / f"{name}-dev" / "copyright"
        if not path.exists():
            print(f"kvtrunk: {path} is missing: the package has programs with {name} in them, and "
                  "not its notices, so do not pass it on", file=sys.stderr)
            if os.environ.get("KVTRUNK_PROGRAMS") == "require":
                raise SystemExit(1)
            continue
        texts.append(f"{'=' * 20} {name} {'=' * 20}\n\n{path.read_text('utf-8')}")
    return ("The programs of this package (kvtrunkd, kvtctl, kvtlab, kvtstored) contain the "
            "libraries below.\nkvtrunk itself is under the Apache License 2.0, see LICENSE.\n\n"
            + "\n".join(texts))


class BuildScripts(build_scripts):
    """The daemon and its tools: programs of machine code, so no line of theirs is changed."""

    def run(self):
        self.outfiles = []
        target = pathlib.Path(self.build_dir)  # installing expects it, also empty
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        wish = os.environ.get("KVTRUNK_PROGRAMS", "")
        if wish == "no":
            return
        if not make("wheel-programs"):
            if wish == "require":
                raise SystemExit("kvtrunk: the programs could not be built (make missing)")
            print(f"kvtrunk: this package has no {', '.join(PROGRAMS)}: their libraries are missing "
                  "(make missing)", file=sys.stderr)
            return
        for name in PROGRAMS:
            shutil.copy2(BUILD / "wheel" / name, target / name)
            self.outfiles.append(str(target / name))
        package = pathlib.Path(self.get_finalized_command("build_py").build_lib) / "kvtrunk"
        (package / "NOTICES").write_text(notices(), "utf-8")

    def get_source_files(self):
        return []

    def get_outputs(self):
        return self.outfiles


def platform_tag():
    """manylinux_X_Y of the newest glibc symbol in what was built; None: take the machine's."""
    sys.path.insert(0, str(HERE))
    import glibc  # pylint: disable=import-outside-toplevel
    files = [BUILD / "wheel" / name for name in PROGRAMS]
    return glibc.tag([str(path) for path in files if path.exists()])


class BdistWheel(bdist_wheel):
    """One wheel for all versions of CPython, named after the glibc that it needs."""

    def finalize_options(self):
        if ABI3:
            self.py_limited_api = "cp310"
        super().finalize_options()

    def get_tag(self):
        python, abi, platform = super().get_tag()
        if platform.startswith("linux_"):
            platform = platform_tag() or platform
        return python, abi, platform


view = Extension(
    "kvtrunk._view", ["kvtrunk/_view.c"], py_limited_api=ABI3,
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if ABI3 else [],
    extra_compile_args=["-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden"])

OUT = BUILD / "python"
OUT.mkdir(parents=True, exist_ok=True)
setup(
    options={"build": {"build_base": str(OUT / "base")}, "egg_info": {"egg_base": str(OUT)}},
    ext_modules=[view],
    cffi_modules=["bindings.py:ffi"],
    scripts=PROGRAMS,
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt, "build_scripts": BuildScripts,
              "bdist_wheel": BdistWheel},
)
