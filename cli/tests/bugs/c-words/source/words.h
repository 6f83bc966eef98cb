/* How many words a text has; spaces stand between them. */
int words(const char *text);
