"""Data parallelism: towers on devices, and the modes in which their gradients update the variables.

Nothing here depends on images or on a particular network, so any model can use it. Start reading at `towers`,
`update` and `parameter_server`.
"""
