"""Hand-written kernels, one module per group; importing one needs Triton.

Everything is in Triton's own dialect but `convolution`, which is in Gluon for NVIDIA's Hopper and
does not run in Triton's interpreter.  Python functions beside the kernels cut the work into
programs and launch them.  The layers that call them, and their gradients, are one folder up.
"""
