import unittest

from wrap import wrap


class Test(unittest.TestCase):
    def test_wrap(self):
        self.assertEqual(wrap("aa bb cc", 5), ["aa bb", "cc"])
        self.assertEqual(wrap("aaaaaa b", 3), ["aaaaaa", "b"])
        self.assertEqual(wrap("", 3), [])


if __name__ == "__main__":
    unittest.main()
