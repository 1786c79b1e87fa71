"""Answers to tensor_parallel."""
import numpy as np


def accepted_bias_in_shares(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    return all_reduce([np.maximum(x @ w1 + b1, 0) @ w2 + b2 / len(w1_parts)
                       for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])


def accepted_totals(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    totals = all_reduce([np.maximum(x @ w1 + b1, 0) @ w2 for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])
    return [total + b2 for total in totals]


mistakes_in_totals = {
    'bias_on_each': (
        'it returns',
        '@ w2 for', '@ w2 + b2 for',
        '[total + b2 for total in totals]', 'totals'),
    'twice': (
        'it calls all_reduce 2 times; once is right',
        'totals = all_reduce(', 'parts = (',
        'return [total + b2 for total in totals]',
        'all_reduce(parts)\n'
        'return [total + b2 for total in all_reduce(parts)]'),
    'without_relu': ('it returns', 'np.maximum(x @ w1 + b1, 0)', '(x @ w1 + b1)'),
}


def refused_hidden_reduced(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    """it raises ValueError"""
    hidden = all_reduce([np.maximum(x @ w1 + b1, 0) for w1, b1 in zip(w1_parts, b1_parts)])
    return [own @ np.concatenate(w2_parts) + b2 for own in hidden]
