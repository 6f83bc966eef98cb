VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


def roman(text):
    """The value of a Roman number."""
    return sum(VALUES[letter] for letter in text)
