import unittest

from roman import roman


class Test(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(roman("XVI"), 16)

    def test_subtracts(self):
        self.assertEqual(roman("IV"), 4)


if __name__ == "__main__":
    unittest.main()
