"""Builds the convolutions for NVIDIA's Hopper where no GPU is: Triton brings the assembler.

    python tests/engines/cuda/build_convolutions.py BATCH,IN,OUT,ACROSS,SIZE,STRIDE ...

prints a line for each kernel that is launched: its name, and the bytes of shared memory that a
program takes.  Not to be run in Triton's interpreter, which knows no Gluon.
"""

import sys

import torch

TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


class Built:
    """Takes the place of a kernel, and builds it when it is launched."""

    def __init__(self, kernel, source):
        self.kernel, self.source = kernel, source

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *given, num_warps):
        import triton
        from triton.backends.compiler import GPUTarget

        types, constants = {}, {}
        for parameter, value in zip(self.kernel.params, given, strict=True):
            name = parameter.name
            if parameter.is_constexpr:
                types[name], constants[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                types[name] = f"*{TYPES[value.dtype]}"
            elif isinstance(value, int):
                types[name] = "i32"
            else:
                types[name] = f"tensordesc<bf16{list(value.block_shape)},{value.layout!r}>"
        source, hopper = self.source(self.kernel, types, constants), GPUTarget("cuda", 90, 32)
        built = triton.compile(source, hopper, {"num_warps": num_warps})
        assert built.asm["cubin"]
        print(self.kernel.fn.__name__, built.metadata.shared, flush=True)


def build(layers):
    """Layers as on the command line, forward and backward."""
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    from unwalk.engines.cuda.kernels import convolution

    sources = {"_convolve": GluonASTSource, "_weigh": GluonASTSource, "_add_up": ASTSource}
    for name, source in sources.items():
        setattr(convolution, name, Built(getattr(convolution, name), source))
    for batch, inner, outer, across, size, stride in layers:
        small = across // stride
        shapes = (batch, inner, across, across), (batch, outer, small, small)
        x, gradient, weight = (
            torch.empty(shape, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
            for shape in (*shapes, (outer, inner, size, size))
        )
        assert convolution.convolve(x, weight, stride).shape == gradient.shape
        assert convolution.input_gradient(gradient, weight, stride).shape == x.shape
        convolution.weight_gradient(gradient, x, torch.empty_like(weight), stride)


if __name__ == "__main__":
    build([map(int, layer.split(",")) for layer in sys.argv[1:]])
