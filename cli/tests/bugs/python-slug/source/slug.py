import re


def slug(title):
    """A title as a part of an address: small letters and digits with single dashes between them."""
    return title.lower().replace(" ", "-")
