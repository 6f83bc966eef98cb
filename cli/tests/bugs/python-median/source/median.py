def median(numbers):
    """The middle of some numbers; of an even count the mean of the two in the middle."""
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
