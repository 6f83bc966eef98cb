python3 test_median.py
