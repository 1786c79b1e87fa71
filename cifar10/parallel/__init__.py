"""Data parallelism: towers on devices, and the modes in which their gradients update the variables.

Nothing here knows images or networks, so any model can be built on it. Read `towers`, `update` and
`parameter_server` first.
"""
