"""Answers to scaled_rate."""


def accepted_minimum(rate, batch, new_batch, curvature):
    return min(rate * new_batch / batch, 1 / curvature)


mistakes_in_minimum = {
    'limit_of_divergence': ('it returns 2; 1 is right', '1 / curvature', '2 / curvature'),
    # Only grows with the batch.
    'never_smaller': (
        'for the rate 0.4 at 512, 128 and the curvature 1 it returns 0.4; 0.1 is right',
        'rate * new_batch / batch', 'max(rate, rate * new_batch / batch)'),
    'square_root': ('it returns 0.2; 0.4 is right', 'new_batch / batch', '(new_batch / batch) ** 0.5'),
}


def accepted_rate_of_an_example(rate, batch, new_batch, curvature):
    of_an_example = rate / batch
    largest_batch = 1 / (curvature * of_an_example)
    return of_an_example * min(new_batch, largest_batch)


def refused_linear_without_a_limit(rate, batch, new_batch, curvature):
    """it returns 3.2; 1 is right"""
    return rate * new_batch / batch
