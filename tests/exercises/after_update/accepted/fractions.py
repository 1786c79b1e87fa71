from fractions import Fraction


def after_update(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    x = [Fraction(float(value)) for value in x]
    borders = [len(x) // count * k + min(k, len(x) % count) for k in range(count + 1)]
    shares = [x] * count if 'same batch' in faults else [x[a:b] for a, b in zip(borders, borders[1:])]
    step = sum(2 * sum(Fraction(w) - value for value in share) / (len(share) if 'means added' in faults else len(x))
               for share in shares)
    return Fraction(w) - Fraction(rate) * step
