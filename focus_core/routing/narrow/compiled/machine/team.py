"""Compiled code in all threads of PyTorch's team at once, without Python in any of them.

`in_threads` calls Python in each thread, and these wait for Python's lock in turn: for a decoded token that took longer
than the work. Here GNU OpenMP calls compiled code alone.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from focus_core.attention.cpu.threads import team
from focus_core.routing.narrow.compiled.machine.llvm import I32, I64, Builder, in_llvm, pointer, whole

_BYTES = ir.IntType(8).as_pointer()
_PARALLEL = "GOMP_parallel"


def has_team() -> bool:
    """Whether PyTorch runs on GNU OpenMP in this process; only then `in_team` can be called, or compiled."""
    openmp = team()
    return openmp is not None and _is_known(openmp)


@lru_cache(maxsize=1)
def _is_known(openmp: Any) -> bool:
    """True, once LLVM knows where OpenMP's function is; compiled code that was kept on disk asks for it by name."""
    llvm.add_symbol(_PARALLEL, ctypes.cast(openmp.GOMP_parallel, ctypes.c_void_p).value)
    return True


@in_llvm
def take(typing: Any, address: Any) -> Any:
    """The int64 at an address, which becomes one larger for the next thread that asks."""

    def generate(context: Any, builder: Builder, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, arguments[0], I64), whole(1), "monotonic")

    return types.int64(types.int64), generate


@in_llvm
def in_team(typing: Any, kernel: Any, threads: Any, arguments: Any) -> Any:
    """Call ``kernel(*arguments)`` once in each thread, this one included; it raises nothing.

    Args:
        typing: Numba's own.
        kernel: compiled, without a result.
        threads: int64, how many.
        arguments: a tuple.
    """
    signature = kernel.get_call_type(typing, tuple(arguments), {})

    def generate(context: Any, builder: Builder, _: Any, values: Any) -> Any:
        compiled = kernel.dispatcher.overloads[signature.args]
        context.active_code_library.add_linking_library(compiled.library)
        shared = cgutils.alloca_once_value(builder, values[2])

        # What each thread runs: the arguments are read from the stack of this one.
        kind = ir.FunctionType(ir.VoidType(), [_BYTES])
        part = ir.Function(builder.module, kind, builder.module.get_unique_name("part_of_team"))
        part.linkage = "internal"
        inside = ir.IRBuilder(part.append_basic_block())
        given = inside.load(inside.bitcast(part.args[0], shared.type))
        function = context.declare_function(inside.module, compiled.fndesc)
        each = [inside.extract_value(given, place) for place in range(len(signature.args))]
        context.call_conv.call_function(inside, function, signature.return_type, signature.args, each)
        inside.ret_void()

        call = ir.FunctionType(ir.VoidType(), [kind.as_pointer(), _BYTES, I32, I32])
        parallel = cgutils.get_or_insert_function(builder.module, call, _PARALLEL)
        count = builder.trunc(values[1], I32)
        builder.call(parallel, [part, builder.bitcast(shared, _BYTES), count, ir.Constant(I32, 0)])
        return context.get_dummy_value()

    return types.void(kernel, types.int64, arguments), generate
