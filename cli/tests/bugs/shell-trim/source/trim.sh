#!/bin/sh
# Prints its argument without the white space at both ends.
echo ${1# }
