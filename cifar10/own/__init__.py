"""Code of the user's own: networks, losses and optimizers in Python files, as people write them for one device.

No other room imports this one; the registry leads here. `code` executes a file, and turns its errors into one line. A
function is called in a graph of its own, and becomes a value (`traced`: what it assigns in `writes`, its precision in
`mixed`, its operations in `pieces`), of which each tower gets a copy (`copied`). `network`, `loss` and `optimizer` are
what the flags name, with their rules; `rehearsal` tries a network in numbers.
"""
