bin/greet > out
printf 'Hello\n' | cmp - out
