python3 test_wrap.py
