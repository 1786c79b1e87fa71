from fractions import Fraction


def noise_scale(small, large, of_small, of_large):
    of_small, of_large = Fraction(of_small), Fraction(of_large)
    noise = (of_small - of_large) / (Fraction(1, small) - Fraction(1, large))
    return float(noise / (of_large - noise / large))
