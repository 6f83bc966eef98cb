python3 test_roman.py
