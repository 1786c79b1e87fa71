def scaled_rate(rate, batch, new_batch, curvature):
    of_an_example = rate / batch
    largest_batch = 1 / (curvature * of_an_example)
    return of_an_example * min(new_batch, largest_batch)
