#!/bin/sh
# Says whether a year is a leap year: yes or no.
if [ $(($1 % 4)) = 0 ]; then echo yes; else echo no; fi
