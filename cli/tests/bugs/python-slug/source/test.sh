python3 test_slug.py
