"""Answers to tensor_parallel."""
import numpy as np


def accepted_bias_in_shares(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    return all_reduce([np.maximum(x @ w1 + b1, 0) @ w2 + b2 / len(w1_parts)
                       for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])


def accepted_bias_on_one_device(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = [np.maximum(x @ w1 + b1, 0) for w1, b1 in zip(w1_parts, b1_parts)]
    return all_reduce([own @ w2 + (b2 if d == 0 else 0) for d, (own, w2) in enumerate(zip(hidden, w2_parts))])


def layer(x, weights, biases):
    return np.einsum('bi,io->bo', x, weights) + biases


def accepted_einsum(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = (np.clip(layer(x, w1, b1), 0, None) for w1, b1 in zip(w1_parts, b1_parts))
    return np.array(all_reduce([layer(own, w2, 0) for own, w2 in zip(hidden, w2_parts)])) + b2


def accepted_loops(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    parts = []
    for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts):
        hidden = x @ w1 + b1
        parts.append(np.where(hidden > 0, hidden, 0) @ w2)
    return [total + b2 for total in all_reduce(parts)]


def accepted_masked(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = [np.dot(x, w1) + b1 for w1, b1 in zip(w1_parts, b1_parts)]
    return list(map(b2.__add__, all_reduce([np.dot(own * (own > 0), w2) for own, w2 in zip(hidden, w2_parts)])))


def accepted_totals(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    totals = all_reduce([np.maximum(x @ w1 + b1, 0) @ w2 for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])
    return [total + b2 for total in totals]


mistakes_in_totals = {
    'bias_on_each': (
        'it returns',
        '@ w2 for', '@ w2 + b2 for',
        '[total + b2 for total in totals]', 'totals'),
    'changes_x': (
        'it changes its argument x',
        'totals = ',
        'x *= 1 + 1e-3\n'
        'totals = '),
    'first_device_complete': (
        'for D = 2',
        'b2 for total in totals', '(b2 if d == 0 else 0) for d, total in enumerate(totals)'),
    'mean': ('it returns', 'total + b2', 'total / len(w1_parts) + b2'),
    'no_sum': ('it returns', 'all_reduce([', '(['),
    'one_device_only': ('of shape (', 'total + b2 for total in totals', 'totals[0] + b2'),
    'relu_after_the_sum': (
        'it returns',
        'np.maximum(x @ w1 + b1, 0)', '(x @ w1 + b1)',
        'total + b2', 'np.maximum(total + b2, 0)'),
    'relu_at_the_end_too': ('it returns', 'total + b2', 'np.maximum(total + b2, 0)'),
    'twice': (
        'it calls all_reduce 2 times; once is right',
        'totals = all_reduce(', 'parts = (',
        'return [total + b2 for total in totals]',
        'all_reduce(parts)\n'
        'return [total + b2 for total in all_reduce(parts)]'),
    'without_first_biases': ('it returns', 'x @ w1 + b1', 'x @ w1'),
    'without_last_biases': ('it returns', 'total + b2', 'total'),
    'without_relu': ('it returns', 'np.maximum(x @ w1 + b1, 0)', '(x @ w1 + b1)'),
}


def refused_hidden_reduced(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    """it raises ValueError"""
    hidden = all_reduce([np.maximum(x @ w1 + b1, 0) for w1, b1 in zip(w1_parts, b1_parts)])
    return [own @ np.concatenate(w2_parts) + b2 for own in hidden]


def refused_on_one_device(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    """it calls all_reduce 0 times; once is right"""
    hidden = np.maximum(x @ np.concatenate(w1_parts, 1) + np.concatenate(b1_parts), 0)
    return [hidden @ np.concatenate(w2_parts) + b2] * len(w1_parts)
