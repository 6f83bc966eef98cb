def wrap(text, width):
    """Lines of at most this width, broken between words; a longer word has a line of its own."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line += word + " "
    return lines + [line]
