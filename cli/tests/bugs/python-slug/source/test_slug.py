import unittest

from slug import slug


class Test(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("One Two"), "one-two")

    def test_signs(self):
        self.assertEqual(slug("Hello,  World!"), "hello-world")

    def test_ends(self):
        self.assertEqual(slug(" -a- "), "a")


if __name__ == "__main__":
    unittest.main()
