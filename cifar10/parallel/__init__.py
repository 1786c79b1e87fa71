"""Data parallelism: towers on devices, and the modes that update the variables with the towers' gradients.

A model is a function that builds a tower, so any model can use it. Start reading at `towers`, `update` and
`parameter_server`.
"""
