"""Compile every Triton kernel of RUM for a CUDA architecture; needs triton, but no GPU.

The interpreter, which runs the kernels in the tests, accepts more than the compiler does.
"""

import inspect
import itertools
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fairseq_rum.kernels.rum import triton_kernels as kernels

OF_ACC = {
    "numbers", "memory", "factors", "candidates", "g_out", "g_part", "rhos", "ys", "images",
    "skew", "g_memory",
}  # fmt: skip


def compile_kernel(function, architecture, io, state, acc, **options):
    signature, constants = {}, {}
    for name in function.arg_names:
        if name in options:
            signature[name], constants[name] = "constexpr", options[name]
        elif name == "batch":
            signature[name] = "i32"
        elif name == "padded":
            signature[name] = "*i8"
        elif name in OF_ACC:
            signature[name] = f"*{acc}"
        else:
            signature[name] = f"*{state if name in ('before', 'after') else io}"
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32))


def main():
    steps = [
        value
        for name, value in vars(kernels).items()
        if not name.startswith("_") and hasattr(value, "arg_names")
    ]
    assert len(steps) == 9, len(steps)
    count = 0
    for function, (io, state) in itertools.product(steps, (("fp32", "fp32"), ("bf16", "fp32"))):
        acc = "fp64" if state == "fp64" else "fp32"
        for masked, eta in ((True, 1.0),):
            options = {
                "N": 50, "W": 150, "GATED": True, "ACTIVATION": "relu", "ETA": eta,
                "MASKED": masked, "DUAL": io != state, "EPS": 1.2e-7,
                "ACC": tl.float64 if acc == "fp64" else tl.float32,
                "ROWS": 4, "LINES": 32, "COLUMNS": 64,
            }  # fmt: skip
            names = inspect.signature(function.fn).parameters
            options = {name: value for name, value in options.items() if name in names}
            compile_kernel(function, int(sys.argv[1]), io, state, acc, **options)
            count += 1
    print(f"compiled {count} variants")


if __name__ == "__main__":
    main()
