#!/bin/sh
# Prints the greatest of its arguments.
greatest=$1
for number in "$@"; do
    if [ "$number" \> "$greatest" ]; then greatest=$number; fi
done
echo "$greatest"
