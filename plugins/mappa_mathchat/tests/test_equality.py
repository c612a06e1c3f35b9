"""A labelled table of answers: what is right, what is wrong, and that no path to a verdict changes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_mathchat.algebra_workers import AlgebraWorker, AnswerBudget
from mappa_mathchat.equality import answers_equal, canonical_spelling
from mappa_mathchat.latex import normalize_spelling, parse_number, split_unit, to_expression

DATA = Path(__file__).parents[4] / "shared" / "data"

RIGHT = [
    # plain numbers
    ("60", "60"), ("060", "60"), ("23", "023"), ("023", "23"), ("0", "000"), ("142", "142.0"), ("142.0", "142"),
    ("-34", "-34.0"), ("−34", "-34.0"), ("+5", "5"), ("60.", "60"), ("60.00", "60"), (".5", "0.5"),
    ("-.5", r"-\frac12"),
    ("1e3", "1000"), ("1.5e-3", "0.0015"), ("1E3", "1000.0"), (r"3\times 10^{3}", "3000"), (r"3 \cdot 10^3", "3000"),
    ("1,234", "1234"), ("1{,}234", "1234"), (r"1,\!234", "1234"), (r"1\,234", "1234"), ("338,551", "338551.0"),
    ("1,234,567.5", "1234567.5"), ("$60$", "60"), (r"\(60\)", "60"), (r"\[60\]", "60"), ("{60}", "60"),
    ("(60)", "60"),
    (r"\text{60}", "60"), (r"\mathbf{60}", "60"), (r"\displaystyle 60", "60"), (r"\left(60\right)", "60"),
    # irregular labels of the published files
    ("80", "080 or 081 (both were accepted)"), ("081", "080 or 081 (both were accepted)"),
    ("080 or 081 (both were accepted)", "080 or 081 (both were accepted)"),
    ("336", r"336^\circ"), (r"336^\circ", r"336^\circ"), (r"336^{\circ}", r"336^\circ"), ("336°", r"336^\circ"),
    (r"336\text{ degrees}", r"336^\circ"), (r"336^\circ", "336"), ("338551", "338551.0"), ("-4", "-4.0"),
    # fractions and mixed numbers
    (r"\frac{1}{2}", "0.5"), (r"\frac12", "0.5"), (r"\dfrac{1}{2}", r"\frac{1}{2}"), (r"\tfrac12", r"\frac{2}{4}"),
    ("1/2", r"\frac12"), (r"-\frac{1}{2}", r"\frac{-1}{2}"), (r"\frac{1}{-2}", "-0.5"), (r"1\frac{1}{2}", "1.5"),
    ("1 1/2", r"\frac32"), (r"-1\frac12", "-1.5"), (r"\frac{120}{2}", "60"), (r"\frac1{2}", "1/2"),
    # units
    (r"60 \text{ cm}", "60"), (r"60\text{ cm}^2", "60"), (r"60\,\mathrm{cm}", "60"), ("60 cm", "60"),
    ("60 cm^2", "60"),
    (r"\text{60 degrees}", "60"), (r"\text{60 cm}", r"60\text{ cm}"), (r"\text{2.5 hours}", "2.5"),
    ("60", r"60\text{ cm}"), (r"5\text{ m}", r"5\text{m}"), (r"60\text{ miles}/\text{hour}", "60"), (r"\$60", "60"),
    ("$60", "60"), (r"18.90\text{ dollars}", r"\$18.90"), (r"60\text{ apples}", "60"), (r"50\%", "50"),
    ("50%", "0.5"),
    (r"50\%", r"\frac12"), ("0.5", r"50\%"), (r"2\sqrt{3}\text{ cm}", r"2\sqrt3"), (r"60\text{ percent}", "60"),
    # algebra
    (r"\sqrt{3600}", "60"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"\sqrt3", r"\sqrt{3}"), ("sqrt(3)", r"\sqrt{3}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), (r"\frac{\pi}{4}", r"\pi/4"), ("pi/4", r"\frac{\pi}{4}"),
    (r"π/4", r"\frac{\pi}{4}"), ("2^{10}", "1024"), ("5!", "120"), (r"\binom{5}{2}", "10"), (r"\log_2 8", "3"),
    ("x^2+2x+1", "(x+1)^2"), (r"\cos 60^\circ", r"\frac12"), (r"(1+i)^2", "2i"), ("30+30", "60"), ("(2)(30)", "60"),
    ("0.5\\pi", r"\frac{\pi}{2}"), (r"\sqrt[3]{8}", "2"), (r"e^{0}", "1"), (r"2\frac13\pi", r"\frac{7\pi}{3}"),
    # names in front
    ("x = 5", "5"), ("m+n=142", "142"), ("5", "x=5"), ("x=30+30=60", "60"), (r"\angle ABC = 60^\circ", "60"),
    ("f(2)=5", "5"), ("30+30=60", "60"), ("y=2x+1", "2x-y+1=0"), (r"\text{Area} = 60", "60"), ("a_{10}=60", "60"),
    ("m + n = 25 + 35 = 60", "60"), (r"\theta = 60", "60"),
    (r"\frac{m}{n} = \frac12", "0.5"), ("100m+10n+p = 60", "60"), ("Answer = 60", "60"), ("f'(2) = 60", "60"),
    ("|AB| = 60", "60"),
    # tuples, intervals, sets, lists
    ("(1,2)", "(1, 2)"), (r"\left(1, \frac12\right)", "(1,0.5)"), ("[1,2)", "[1, 2)"), (r"\{2,1\}", r"\{1,2\}"),
    ("2,1", "1, 2"), (r"\{1,2\}", "1,2"), (r"\{60\}", "60"), (r"\pm 2", "2,-2"),
    (r"3\pm\sqrt2", r"3-\sqrt{2},3+\sqrt{2}"),
    (r"(-\infty,3)\cup(5,\infty)", r"(5,\infty) \cup (-\infty,3)"), (r"(3,\infty)", "x>3"), ("x>3", r"(3,\infty)"),
    (r"x\in(1,2)", "(1,2)"), ("x=1, x=2", "1,2"), (r"1\text{ and }2", "1,2"), (r"(\sqrt4, 3)", "(2,3)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    # numbers that are tiny, huge, or need more than their digits
    (r"\frac{1}{2^{200}}", "2^{-200}"), (r"\frac{101}{101!}", r"\frac{1}{100!}"), ("2^{2024}-2^{2023}", "2^{2023}"),
    (r"\sqrt{11+6\sqrt2}+\sqrt{11-6\sqrt2}", "6"), (r"\tan 15^\circ", r"2-\sqrt3"),
    (r"\binom{200}{100}", r"\frac{200!}{(100!)^2}"), (r"e^{i\pi/3}", r"\frac12+\frac{\sqrt3}{2}i"),
    # words
    (r"\text{Evelyn}", "Evelyn"), ("evelyn", r"\text{Evelyn}"), (r"\text{(C)}", "(C)"), ("C", r"\text{C}"),
    ("1011_2", "1011_2"), ("2516_{8}", "2516_8"), (r"\text{(E)}", "E"), (r"\textbf{(E)}", "E"), (r"\mathrm{(A)}", "A"),
    # letters and units in roman type
    (r"\mathrm{e}^{2}", "e^2"), (r"2\pi\mathrm{i}", r"2\pi i"), (r"3+4\mathrm{i}", "3+4i"),
    (r"e^{\mathrm{i}\pi/3}", r"e^{i\pi/3}"), (r"10\text{ mph}", r"10\text{ miles per hour}"),
    (r"5\text{ hr}", r"5\text{ hours}"), (r"12\text{ cm}^3", r"12\text{ cubic centimeters}"),
    (r"12\text{ sq. cm}", r"12\text{ cm}^2"), ("25 square units", "25"), ("12 cubic feet", "12"),
    (r"5\text{ people}", "5"), (r"1\text{ way}", "1"), (r"5\text{ apples per child}", "5"),
    (r"100^\circ C", "100"), (r"100^{\circ} C", r"100^\circ\mathrm{C}"), ("212 °F", r"212^\circ F"),
    (r"(-\infty,-2)\text{ or }(2,\infty)", r"(-\infty,-2)\cup(2,\infty)"),
    (r"{5 \choose 2}", "10"), (r"5\choose 2", "10"),
    (r"0, 1, \text{ and } 2", "0,1,2"), (r"0, 1,\text{ and }2", r"\{2,1,0\}"), (r"\frac{3}{4} = 0.75", "0.75"),
    (r"\sqrt{16} = 2^2 = 4", "4"), (r"5 \text{ million}", r"5\text{ million}"), (r"5 \text{ lakh}", r"5\text{ lakh}"),
    (r"17\text{ years old}", "17"), ("17 years old", r"17\text{ years}"),
    (r"\mathbb{R}", r"(-\infty,\infty)"), (r"x \in \mathbb{R}", r"(-\infty, \infty)"),
    (r"\text{all real numbers}", r"\mathbb{R}"), ("all real numbers", r"(-\infty,\infty)"),
    (r"2\text{ cups of flour}", "2"), (r"5\text{ red balls}", "5"), (r"30^\circ\text{C}", r"30\text{ degrees Celsius}"),
    (r"12,000\text{ m}", "12000"), (r"-\$5", "-5"), ("$-5", "-5"), (r"\$1,250.50", "1250.5"),
    # either, both, names of structures
    ("3 or -3", "-3, 3"), (r"3 \text{ or } -3", r"\pm 3"), ("3,-3", "3 or -3"), ("1 or (2)", "2,1"),
    ("2,3", r"2\text{ or }3"), (r"3\text{ or }2", r"2\text{ or }3"), ("3, 1, or 2", "1,2,3"), ("x=3 or x=-3", r"\pm 3"),
    (r"(-\infty,-5]\cup[5,\infty)", r"x\le -5 \text{ or } x\ge 5"), ("odd or even", "even or odd"),
    (r"x\ge 5 \text{ or } x\le -5", r"x\le -5 \text{ or } x\ge 5"), ("81", "080 or 081 (either is accepted)"),
    ("(x,y)=(3,4)", "(3,4)"), ("P=(1,2)", "(1,2)"), (r"S=\{1,2\}", r"\{2,1\}"), (r"D=(-\infty,3)", r"(-\infty,3)"),
    ("P=(1,2)", "P=(1,2.0)"),
    # numbers that repeat, thousands inside expressions, characters
    (r"0.\overline{3}", r"\frac13"), (r"0.1\overline{6}", r"\frac16"), (r"1.\overline{27}", r"\frac{14}{11}"),
    (r"-0.\bar{3}", "-1/3"), (r"1,200\pi", r"1200\pi"), (r"\frac{1,000}{3}", r"\frac{1000}{3}"),
    ("√2", r"\sqrt2"), ("2√12", r"4\sqrt3"), ("½", "0.5"), ("1½", "1.5"), ("10⁴", "10000"), ("2¹⁰", "1024"),
    ("10⁻³", "0.001"), (r"\dbinom{5}{2}", "10"), (r"\varnothing", r"\emptyset"), (r"\{\}", r"\emptyset"),
    ("∅", r"\emptyset"),
    # lists, ratios, tables and units as models write them
    ("x+y=5", "x+y=5"), ("2x+2y=10", "x+y=5"), ("(7,11), (11,7)", "(11,7)or(7,11)"), ("x=1,x=2", "x=1orx=2"),
    ("-12,-11", "-12;-11"), ("11:21", "V_{1}:V_{2}=11:21"), ("3:4", "a:b=3:4"), ("3:4", "3:4"), (r"x \lt 3", "x<3"),
    (r"x \gt 5", "x>5"), ("x != 3", r"x \neq 3"), (r"[5,\infty)", "x>=5"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"), (r"32,\! 349", "32349"), ("-10,-8,4", r"a=4,\,-8,\,-10"),
    (r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]", r"\begin{pmatrix}1 & 2 \\3 & 4\end{pmatrix}"),
    (r"125\textnormal{ miles}", "125"), (r"125\textnormal{ miles}", r"125\text{ miles}"),
    (r"(x, y) = (5, 8) \quad \text{and} \quad (8, 5)", "(5, 8), (8, 5)"),
    (r"x = \frac{1}{2}, x = \frac{-1 \pm \sqrt{13}}{4}", r"x = \frac{1}{2}, x = \frac{-1 \pm \sqrt{13}}{4}"),
    (r"0.06 \text{ yuan}", r"0.06\text{ yuan}"), (r"x_1=2,\quad x_2=3", "2,3"), ("472/10,000", "472/10000"),
    ("472/10,000", "0.0472"), ("1,000/3", "1000/3"), ("-1+exp(16)", "e^{16}-1"), ("3.0e8", r"3\times10^8"),
    ("3e+8", r"3\times10^8"), (r"\text{1,000}", "1000"), ("1 000 000", "1000000"), (r"y=\frac{3}{2}x+1", "3x-2y+2=0"),
    (r"\left(-\infty, -1\right) \cup \left(1, \infty\right)", "x<-1 or x>1"), (r"5.00\text{ USD}", r"\$5"),
    ("2^{-3}", "0.125"), (r"36\pi\text{ cm}^3", r"36\pi"), (r"36 \pi \,\text{cm}^3", r"36\pi"),
    (r"5\ \mathrm{m/s}", "5"), (r"9.8\ \mathrm{m/s^2}", "9.8"), (r"4\sqrt(2)", r"4\sqrt{2}"),
    ("n = 1, 3, 2", "n=1, 2, 3"), ("a=-2, 1", r"a=1 \text{ or } a=-2"),
    (r"a=-2\text{ or }1", r"a=1 \text{ or } a=-2"), (r"\text{13}", "13"), ("-1 + exp(16)", "e^{16} - 1"),
    ("14.0 + -1.0i", "14 - i"), ("-2*pi", r"-2\pi"), (r"\frac{472}{10,000}", "0.0472"), ("15/4", "3.75"),
    ("**73**", "73"), ("$12 $ and $13", "12,13"), ("12 $ and $13", r"12\text{ and }13"), (r"\\frac{1}{2}", "0.5"),
    ("€5", "5"), ("1,000.99€", "1000.99"), ("£5", "5 pounds"), (r"\mathrm{36 cm^3}", "36"),
    (r"36\mathrm{cm^3}", "36"), ("x**2", "x^2"), ("2**10", "1024"), ("AB=4,CD=5", "4,5"), ("4,5", "AB=4,CD=5"),
    ("(5,2),(7,2)", "p=5,q=2;p=7,q=2"), ("x=5,y=2", "(5,2)"), ("(0;0;0),(1;2;3)", "(1,2,3),(0,0,0)"),
    ("7:32", "S_{MBCN}:S=7:32"), (r"\frac{1}{\sqrt6}", r"\frac{NO}{BO}=\frac{1}{\sqrt{6}}"), ("1", "f(x)=1"),
    ("1", "|AB|=1"), ("1", "A:B=1"), (r"\pi r^2", r"A=\pi r^2"), ("2x+1", "f(x)=2x+1"), ("60", "30+30=60"),
    ("2,3", "x_1=2,x_2=3"), ("x=2,x=3", "x_1=2,x_2=3"), ("[1,2] U [3,4]", r"[1,2]\cup[3,4]"),
    ("(-inf, 3)", r"(-\infty,3)"), (r"x\neq 3", r"(-\infty,3)\cup(3,\infty)"), (r"\sin(x)/2", r"\frac{\sin x}{2}"),
    ("$x=5$", "5"), ("2x-y+1=0", "y=2x+1"), ("`5`", "5"), ("28 pct", r"28\%"), ("28 percentage", r"28\%"),
    (r"\text{m}=5", "5"), (r"5\,\text{m/s}", "5"), ("a=b", "b=a"), ("x<2,y<3", "y<3,x<2"),
    ("1/2,-1/2", r"\pm\frac12"),
    (r"\frac12,\frac{-1+\sqrt{13}}{4},\frac{-1-\sqrt{13}}{4}", r"x=\frac12,x=\frac{-1\pm\sqrt{13}}{4}"),
    (r"\{1+\sqrt5,1-\sqrt5,-2\}", r"\{1\pm\sqrt{5},-2\}"), (r"m\angle ABC=60", "60"), ("60", r"m\angle ABC=60^\circ"),
    (r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"), ("14.0 - 1.0*i", "14-i"),
    (r"\exp(2)", "e^2"), ("P(A)=1/2", r"\frac12"), (r"\frac12", r"P(A)=\frac{1}{2}"), ("1/2", r"P(X=2)=\frac12"),
    ("10,000/3", r"\frac{10000}{3}"), ("3.5", r"\frac{7}{2}\text{ cm}"), ("(1,2,3)", "(1,2,3)"),
    (r"2\sqrt{2}", r"\sqrt{8}\text{ units}"), ("5", r"\text{Area}=5"), (r"y = \frac{1}{2}x + 3", "x-2y+6=0"),
    (r"5 \le x", r"[5,\infty)"), (r"x \geq 5", r"5\leq x"), ("(x-1)^2+y^2=4", "x^2-2x+y^2-3=0"),
]  # fmt: skip

WRONG = [
    # other numbers
    ("61", "60"), ("6", "60"), ("600", "60"), ("-60", "60"), ("60.5", "60"), ("60.0000001", "60"),
    ("0.333333", r"\frac13"),
    ("82", "080 or 081 (both were accepted)"), ("80081", "080 or 081 (both were accepted)"), ("3.14", r"\pi"),
    (r"\frac{22}{7}", r"\pi"), ("1.414", r"\sqrt2"), ("1,23", "123"), ("1234,5", "1234.5"), ("6 0", "60"),
    (r"6\,0", "60"),
    ("1e3", "13"), ("11/2", "1.5"), (r"\frac{1}{0}", "0"), (r"\sqrt{2}+10^{-20}", r"\sqrt{2}"),
    (r"1-\frac{1}{2010!}", r"1-\frac{1}{2009!}"), (r"\frac{1}{2^{200}}", r"\frac{1}{3^{200}}"),
    (r"\frac{1}{100!}", r"\frac{1}{101!}"), (r"\frac{2^{100}}{100!}", r"\frac{3^{100}}{100!}"),
    (r"\sqrt{10^{120}+1}", "10^{60}"),
    (r"\frac{\sqrt2}{2^{200}}", r"\frac{\sqrt2}{3^{200}}"), (r"\frac{1}{1+2^{200}}", r"\frac{1}{2^{200}}"),
    (r"\begin{pmatrix}\frac{1}{2^{200}}\\2\end{pmatrix}", r"\begin{pmatrix}\frac{1}{3^{200}}\\2\end{pmatrix}"),
    (r"\pi+10^{-51}", r"\pi"),
    # the right number among other things
    ("1 or 60", "60"), ("60 or 61", "60"), (r"60 \text{ or } 61", "60"), (r"60\text{ or 61}", "60"), ("60, 61", "60"),
    ("60,61", "60"), ("1, 60", "60"), ("60 61", "60"), (r"60 \quad 61", "60"), ("60;61", "60"), (r"\{60, 61\}", "60"),
    ("(60, 61)", "60"), ("60 and 61", "60"), (r"\pm 60", "60"), (r"60 \pm 1", "60"), ("60?", "60"), ("not 60", "60"),
    (r"\text{not } 60", "60"), (r"\neq 60", "60"), (r"\approx 60", "60"), ("<60", "60"), (r"x \le 60", "60"),
    ("60-61", "60"),
    ("60:1", "60"), ("60'", "60"), ("60_7", "60"), ("1{59}", "60"), ("{1}{59}", "60"), ("30(30)", "60"),
    ("60,", "60"),
    ("60,60", "60"), ("60/", "60"), ("--60", "60"), ("60 60", "60"), ("60x", "60"), ("60!", "60"), ("80 or 81 or 82",
    "080 or 081 (both were accepted)"), ("60 (maybe)", "60"), ("the answer is 60", "60"), (r"60\text{ million}", "60"),
    (r"60\text{ or more}", "60"), ("60..", "60"), (r"60\ldots", "60"), ("6²", "62"), ("２", "2"), ("[60]", "60"),
    # an equation, another name, another unit
    ("2x = 60", "60"), ("x + 1 = 60", "60"), ("1=60", "60"), ("60=61", "60"), ("x=1=60", "60"), ("=60", "60"),
    ("60=", "60"),
    ("x=5", "y=5"), (r"5\text{ m}", r"5\text{ cm}"), (r"50\%", "5"), ("5000", r"50\%"),
    (r"60\text{ cm}", r"60\text{ cm}^2"),
    ("not = 60", "60"), (r"\pi = 60", "60"), (r"\neq = 60", "60"), ("x or y = 60", "60"), (r"x \approx y = 60", "60"),
    ("6 \\quad 0", "60"), ("00 \\quad 60", "60"), ("[0]60", "60"), (r"x \in 60", "60"), (r"^\circ = 60", "60"),
    # words that change the value, mathematics in roman type, other currencies
    *((rf"5\text{{ {words}}}", "5") for words in (
        "millions", "thousands", "dozens", "halves", "tenths", "hundreds", "quarters", "minus one", "plus two",
        "times ten", "choose two", "remainder two", "over seven", "below zero", "negative", "six", "maybe",
        "wrong", "at most", "hmm", "pi", "x", "i", "k", "M", "K", "bn", "per", "sixteenths", "squared", "and a half",
        "for odd", "wait", "each",
    )),
    (r"3+4\mathrm{i}", "7"), (r"5\mathrm{i}", "5"), (r"2\mathrm{e}^{3}", "2"), (r"2\operatorname{i}", "2"),
    (r"5\text{x}", "5"),
    (r"2.5\text{ M}", "2.5"), (r"5\text{k}", "5"), (r"2n\text{ for odd}", "2n"), (r"n\text{ even}", "n"),
    (r"5\text{ ms}", r"5\text{ m}"), ("C students", "C"), (r"\$25", r"25\text{ cents}"), ("$25", "25 cents"),
    (r"\$5", r"5\text{ cm}"), (r"\$5", r"5\%"), ("$5", r"5^\circ"), (r"7\text{ am}", "7"),
    # either is not both, and a remark is not mathematics
    ("2", r"2 \text{ or } 3"), (r"x\le-5", r"x\le -5 \text{ or } x\ge 5"), ("3", "x=3 or x=-3"),
    ("even", "even or odd"), ("3", "3 or -3"), ("3 or 3", "3 or -3"), (r"1+5\choose 2", "11"),
    (r"\frac{3}{4} = 0.75", r"\frac12"),
    (r"\frac{1}{2} = 0.75", "0.75"), (r"5 \text{ million}", "5"), (r"0, 1, \text{ and } 2", "0,1"),
    (r"{5\choose 3}", r"\binom{4}{3}"),
    (r"(-\infty,-2)\text{ or }(3,\infty)", r"(-\infty,-2)\cup(2,\infty)"), ("(1,2) or (3,4)", r"(1,2)\cup(3,5)"),
    (r"100^\circ C", r"100^\circ F"),
    (r"\mathbb{R}", r"(0,\infty)"), (r"\mathbb{Z}", r"\mathbb{R}"),
    (r"100^\circ C", "212"), ("real numbers", r"\mathbb{Z}"),
    ("80 or 81", "080 or 081 (both were accepted)"), ("81", "80 or 81 (the latter was not accepted)"),
    (r"x\le -5 \text{ or } x\ge 6", r"x\le -5 \text{ or } x\ge 5"), (r"\sin", r"\sin (x)"), ("a", "a (b)"),
    # spellings that are another number, name or word
    (r"3\frac{7}{2}", "6.5"), (r"3\frac{7}{2}", "10.5"), ("2 7/2", "5.5"), (r"12 \quad 345", "12345"), ("-x=60", "60"),
    ("no", "on"), ("AB", "BA"), (r"\sqrt{1,234}", "1"), ("√12", r"2\sqrt1"), (r"0.\overline{3}", "0.3"),
    (r"1.\overline{27}", "1.27"), ("(y,x)=(3,4)", "(3,4)"), ("P=(1,2)", "Q=(1,2)"), ("2516_8", "2516_7"),
    # structures
    ("(2,1)", "(1,2)"), ("[1,2]", "(1,2)"), ("(1,2]", "[1,2)"), ("1,2", "(1,2)"), ("1,2,2", "1,2"), ("1,1", "1,2"),
    ("1", "1,2"),
    (r"\{1\}", r"\{1,2\}"), (r"(-\infty,3)", r"(-\infty,3]"), ("x>4", r"(3,\infty)"), (r"\pm 2", "2"),
    ("1,234", r"\{1,234,5\}"),
    # words and nonsense
    ("Evelyn", "Carla"), ("sixty", "60"), ("A", "a"), ("", "60"), (" ", "60"), (r"\text{}", "60"), ("()", "60"),
    (r"\frac{}{}", "60"),
    (r"\text{60 degrees}", "61"), (r"\text{60 cm}", r"60\text{ m}"), (r"\text{60 or so}", "60"),
    (r"\text{6 dozen}", "6"),
    ("{60", "60"), ("60}", "60"), ("(60", "60"), (r"\frac{60}", "60"), (r"\sqrt{", "60"), ("\\", "60"), ("$", "60"),
    ("^", "60"),
    # an equation in several unknowns is met by an equation, and values of several names by their order
    ("0", "a+3z=0"), ("0", "a^2+b=0"), ("25", "x^2+y^2=25"), ("6", "2x+3y=6"), ("0", "3x - 4y + 12 = 0"),
    ("1", r"\frac{x^2}{9}+\frac{y^2}{4}=1"), ("4x", "y^2 = 4x"), ("1", "xy=1"), ("5", "3or5"),
    ("f(x)=0", r"\forall x>0, f(x)=0"), (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"), ("n=2, 3, 4", "n=1, 2, 3"),
    ("D = (0, 1)", "D = (0, 1.5)"), (r"19, 46, \text{ and } 82", "21, 36, and 82"),
    (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"), (r"\pm 2021", "2021"), ("12:00", "1:00"),
    (r"1:2:3:\ldots", r"1:4:9:\ldots"), ("3*x-1*y+13=0", "3x + 4y + 14=0"), ("32, 349", "32349"), ("1, 234", "1234"),
    ("47.2, 0", "472/10,000"), ("5,4", "AB=4,CD=5"), ("5", "a+b=5"), ("2x+1", "y=2x+1"), ("2", "x=1=2"),
    ("2", r"\sqrt{x}=2"), ("2", "x^2=2"), ("1/2", r"\sin x=\frac12"), ("x=1,y=2,x=2,y=1", "x=1,y=1,x=2,y=2"),
    ("19,2", "a_3=2,a_{37}=19"), ("3", "x=y=3z"), ("6", "x(x+1)=6"), ("2x-6", "0=2x-6"), ("x^2+y^2", "25=x^2+y^2"),
    ("24", "abcd=24"), ("2", r"\frac{x}{y}=2"), ("5", "x=5y"), ("x=5", "2x=10"), ("2x=10", "x=5"), ("1:00", "12:00"),
    ("1,2;3,4", "1,3;2,4"), ("2y+1", "X=2Y+1"), ("0", r"\{0,0\}"), ("X_1", "x_1"), ("3", "|x|=3"), ("120", "5!=121"),
    ("7", r"7 \ne x"), ("(2,5)", "x=5,y=2"), ("f(x)=2", "f(x)=3"), ("6", "ab+c=6"), ("10", "p+q"), ("2", "A/B=2"),
    ("3", "x-y=3"), ("x+y", "x+y=5"), ("5", "5=x+y"), (r"\sqrt{2,100}", r"\sqrt2,100"),
    (r"1+\sqrt{2100}", r"1+\sqrt2,100"), ("0", "0=0"), ("7", r"x \equiv 7"), ("5", "x+y=5, x-y=1"),
    ("(5,1)", "x+y=5,x-y=1"), ("5,1", "x+y=5,x-y=1"), ("0", "ax^2+bx+c=0"),
]  # fmt: skip


@pytest.fixture(scope="module")
def algebra():
    worker = AlgebraWorker()
    yield lambda answer, reference: AnswerBudget(worker, 5.0).equal(answer, reference)
    worker.close()


@pytest.mark.parametrize(("answer", "reference"), RIGHT)
def test_right_answers_are_right(answer, reference, algebra):
    assert answers_equal(answer, reference, algebra)


@pytest.mark.parametrize(("answer", "reference"), WRONG)
def test_wrong_answers_are_wrong(answer, reference, algebra):
    assert not answers_equal(answer, reference, algebra)


@pytest.mark.parametrize(("answer", "reference"), RIGHT)
def test_equality_is_symmetric(answer, reference, algebra):
    if " or " not in reference and "=" not in answer:
        assert answers_equal(reference, answer, algebra)


SPELLINGS = [
    "60",
    "-60",
    "060",
    "60.0",
    "120/2",
    r"\frac{120}{2}",
    r"-\frac{120}{2}",
    "0.5",
    ".50",
    r"\frac{1}{2}",
    "1/2",
    "0",
]


@pytest.mark.parametrize("left", SPELLINGS)
def test_exact_comparison_of_numbers_agrees_with_algebra(left, algebra):
    for right in SPELLINGS:
        assert (parse_number(normalize_spelling(left)) == parse_number(normalize_spelling(right))) == algebra(
            left, right
        ), (left, right)


@pytest.mark.parametrize("answer", [answer for answer, _ in RIGHT if to_expression(normalize_spelling(answer))])
def test_an_expression_that_is_spelled_the_same_is_the_same_by_algebra(answer, algebra):
    latex = to_expression(split_unit(normalize_spelling(answer))[0])
    assert latex is None or "=" in latex or algebra(latex, latex)


@given(numerator=st.integers(-(10**9), 10**9), denominator=st.integers(1, 999), other=st.integers(-(10**9), 10**9))
def test_numbers_are_equal_exactly_when_their_values_are(numerator, denominator, other):
    def never(left, right):
        raise AssertionError(f"two numbers need no algebra: {left}, {right}")

    fraction = rf"\frac{{{numerator}}}{{{denominator}}}"
    assert answers_equal(f"{numerator}/{denominator}".replace("-", "−"), fraction, never)
    assert answers_equal(fraction, rf"\frac{{{other}}}{{{denominator}}}", never) == (numerator == other)
    assert answers_equal(f"{numerator:,}", f"{numerator}.0", never)
    assert answers_equal(str(other), f"00{numerator}" if numerator >= 0 else str(numerator), never) == (
        other == numerator
    )


@given(st.text(alphabet=r"60{}()[]\^_$%,.;:!|&'~ +-*/=<>xeorπ°²ftract", max_size=30))
def test_no_text_breaks_the_comparison_and_what_goes_to_algebra_is_an_expression(text):
    asked = []

    def algebra(answer, reference):
        asked.append((answer, reference))
        return False

    assert answers_equal(text, "60", algebra) in (True, False)
    assert all(to_expression(answer) is not None for answer, _ in asked)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+" * 600 + "1", "601"),
        ("(" * 400 + "60" + ")" * 400, "60"),
        ("9" * 5000, "61"),
        ("(" * 1200 + "1" + ")" * 1200, "1"),
        ("{" * 3000 + "}" * 3000, "60"),
    ],
    ids=["long", "deep", "more digits than Python reads", "deeper than Python recurs", "empty groups"],
)
def test_long_and_deep_texts_are_equal_only_to_themselves_on_either_side(text, value, algebra):
    assert answers_equal(text, text, algebra)
    assert not answers_equal(text, value, algebra) and not answers_equal(value, text, algebra)


def test_parts_that_are_the_same_are_paired_without_algebra():
    """A list of many parts in another order is not wrong because the time that algebra has is short."""
    asked = []

    def algebra(answer, reference):
        asked.append((answer, reference))
        return (answer, reference) == (r"\sqrt{12}", r"2\sqrt{3}")

    parts = [rf"{n}+\sqrt{{{n + 1}}}" for n in range(16)]
    answer, reference = ",".join([r"\sqrt{12}", *reversed(parts)]), ",".join([*parts, r"2\sqrt{3}"])
    assert answers_equal(answer, reference, algebra)
    assert asked == [(r"\sqrt{12}", r"2\sqrt{3}")]


@pytest.mark.parametrize(
    "spellings",
    [("023", "23", "23.0"), (r"\frac{1}{2}", r"\dfrac12", "0.5"), ("1 1/2", "1.5"), (r"\left(1,2\right)", "(1, 2)")],
)
def test_spellings_of_one_answer_have_one_canonical_spelling(spellings):
    assert len({canonical_spelling(one) for one in spellings}) == 1


def test_different_answers_have_different_canonical_spellings():
    answers = ["1 1/2", "11/2", "6 0", "60", "(1,2)", "[1,2]", "9" * 5000, "9" * 5001]
    assert len({canonical_spelling(answer) for answer in answers}) == len(answers)


@pytest.mark.parametrize("name", ["AIME_1983_2024.json", "amc.json", "aime_2025.json"])
def test_every_label_of_the_published_files_is_right_for_itself_without_algebra(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the published data is not here: {name}")

    def never(answer, reference):
        raise AssertionError(f"a label of the published files needs no algebra: {answer}, {reference}")

    for row in json.loads(path.read_text(encoding="utf-8")):
        label = str(row["answer"])
        assert answers_equal(label, label, never)
        assert not answers_equal(f"{label} or 17", label, never)
        if label.isdigit():
            assert answers_equal(str(int(label)), label, never) and not answers_equal(str(int(label) + 1), label, never)
