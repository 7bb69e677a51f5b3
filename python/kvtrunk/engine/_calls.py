# SPDX-License-Identifier: Apache-2.0
"""Calls in an engine's sources, bound to the signatures of what an adapter puts in their place.

Both sides are read as text and nothing is imported, so a wheel that does not run here is checked,
too. A call that does not bind would be a TypeError at an engine's first request.
"""
from __future__ import annotations

import ast
import inspect
import pathlib
import zipfile
from typing import Any, Collection, Iterator, Optional, Union

Folder = Union[pathlib.Path, zipfile.Path]


def class_body(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Statements of a class, or of the module if there is no name. Empty: there is no such class."""
    if not name:
        return tree.body
    return [item for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name
            for item in node.body]


def methods(tree: ast.Module, name: str) -> dict[str, ast.FunctionDef]:
    """A class's functions, or the module's if there is no name."""
    return {item.name: item for item in class_body(tree, name) if isinstance(item, ast.FunctionDef)}


def arguments(function: Union[ast.FunctionDef, ast.AsyncFunctionDef]) -> set[str]:
    """Names of a function's arguments, without * and **."""
    given = function.args
    return {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def signature(function: ast.FunctionDef) -> inspect.Signature:
    """A function's signature as inspect.signature() gives it, without types."""
    given, kind = function.args, inspect.Parameter
    plain = [*given.posonlyargs, *given.args]
    first_default = len(plain) - len(given.defaults)
    found = [kind(arg.arg, kind.POSITIONAL_ONLY if i < len(given.posonlyargs)
                  else kind.POSITIONAL_OR_KEYWORD,
                  default=kind.empty if i < first_default else None)
             for i, arg in enumerate(plain)]
    if given.vararg is not None:
        found.append(kind(given.vararg.arg, kind.VAR_POSITIONAL))
    found += [kind(arg.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else None)
              for arg, default in zip(given.kwonlyargs, given.kw_defaults)]
    if given.kwarg is not None:
        found.append(kind(given.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(found)


def _receiver(function: ast.expr) -> tuple[str, str]:
    """The last name before a call's method, and the method."""
    if not isinstance(function, ast.Attribute):
        return "", ""
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name, function.attr


def calls(tree: ast.AST, receivers: Collection[str]) -> Iterator[tuple[str, ast.Call]]:
    """Calls of methods of what has one of these names: the method, and the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            receiver, method = _receiver(node.func)
            if receiver in receivers:
                yield method, node


def _why_unbound(call: ast.Call, taken: inspect.Signature) -> Optional[str]:
    """Why a call does not bind. None: it does. Arguments in * and ** cannot be seen."""
    seen: list[Any] = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
    named = {word.arg: None for word in call.keywords if word.arg is not None}
    hidden = len(seen) < len(call.args) or len(named) < len(call.keywords)
    try:
        (taken.bind_partial if hidden else taken.bind)(None, *seen, **named)
    except TypeError as error:
        return str(error)
    return None


def unbound(tree: ast.AST, receivers: Collection[str], ours: dict[str, ast.FunctionDef],
            what: str) -> list[str]:
    """Calls that our methods do not take: a line each. what: what the calls are of."""
    found = []
    for method, call in calls(tree, receivers):
        why = _why_unbound(call, signature(ours[method])) if method in ours else None
        if why is not None:
            found.append(f"line {call.lineno} calls {method}() of {what} otherwise than kvtrunk "
                         f"takes it: {why}")
    return found
