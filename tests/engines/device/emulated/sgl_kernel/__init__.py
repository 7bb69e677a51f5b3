# SPDX-License-Identifier: Apache-2.0
"""Stand-in in plain torch for sglang-kernel, whose libraries need a device: what a dense model calls
there. Each other function raises when it is called."""
import importlib.abc
import importlib.machinery
import sys

from torch.nn import functional

__version__ = "0.4.10"  # SGLang 0.5.23 asks for it, and for the folder of its metadata


def rmsnorm(values, weight, eps=1e-6, out=None, **_options):
    """Normalize rows by the root of their mean square."""
    made = functional.rms_norm(values.float(), values.shape[-1:], weight.float(), eps)
    return made.to(values.dtype) if out is None else out.copy_(made)


def fused_add_rmsnorm(values, residual, weight, eps=1e-6, **_options):
    """The sum becomes the residual, and its norm the values, in place."""
    residual.add_(values)
    rmsnorm(residual, weight, eps, values)


def silu_and_mul(values, out=None):
    """A gate: the first half of each row is the activation."""
    gate, up = values.chunk(2, -1)
    made = functional.silu(gate) * up
    return made if out is None else out.copy_(made)


def is_arch_support_pdl():
    """Whether kernels may overlap."""
    return False


class _Types:
    """Types of quantized values, by name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


scalar_types = _Types()


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments, **_options):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for a device")

    return missing


class Parts(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Each module in this package has the same names."""

    def find_spec(self, name, _path, _target=None):
        """Spec of a module of this package that is imported."""
        return (importlib.machinery.ModuleSpec(name, self)
                if name.startswith(__name__ + ".") else None)

    def exec_module(self, module):
        """Give it what this one has."""
        module.__getattr__ = lambda name: getattr(sys.modules[__name__], name)


sys.meta_path.append(Parts())
