"""What is known of the symbols of one trace, and which questions that settles.

Contract. `learn(truth)` takes a boolean expression that holds from now on; `decide(question)` answers True, False or
None from what was learned and never assumes more; `simplify(expr)` rewrites an expression to one that has the same
value wherever everything learned holds. Facts only accumulate.

    fact             kept as
    range            `ranges[symbol]`: (low, high), `-INF` and `INF` for unbounded
    equality         `replacements[atom]`: union-find; a symbol (or an opaque atom) stands for an expression over
                     symbols that are older, so that chains end
    divisibility     `p % d == 0` becomes p = d * t with a fresh symbol t, whose definition is p // d: after the
                     substitution every quotient and remainder by a divisor of d is exact by plain polynomial algebra
    inequality       `known[p]` = k: p + k >= 0 for the polynomial p without constant term
    anything else    `assumed[question]`: True or False

Why so small: sizes in programs are sums of products; an equality almost always gives one symbol in terms of others,
and an order almost always follows from ranges or from one earlier comparison.
"""

from __future__ import annotations

import math

from stator.sizes.bounds import INF, Bound, Bounds, plus_high, product
from stator.sizes.expression import Algebra, Expr, Monomial

_FACTS_TRIED = 48  # comparisons looked through for one that implies the question
_ROUNDS = 4  # of range propagation after a new fact


class Contradiction(ValueError):
    """What was to be learned cannot hold together with what is known."""


class Facts(Bounds):
    """The knowledge of one trace."""

    def __init__(self, algebra: Algebra) -> None:
        super().__init__(algebra)
        self.replacements: dict[Expr, Expr] = {}
        self.definitions: dict[Expr, Expr] = {}  # symbol made for a divisibility -> the quotient it stands for
        self.assumed: dict[Expr, bool] = {}
        self.eliminate_first: set[Expr] = set()  # unbacked symbols: replaced rather than kept
        self.fixed: list[Expr] = []  # symbols in the order they became constants
        self._simplified: dict[Expr, Expr] = {}
        self._decided: dict[Expr, bool | None] = {}
        self._definition_patterns: list[tuple[int, Expr, int]] = []

    def declare(self, symbol: Expr, low: Bound, high: Bound, eliminate_first: bool = False) -> None:
        """A new symbol and its range."""
        self.ranges[symbol] = (low, high)
        if eliminate_first:
            self.eliminate_first.add(symbol)
        if low == high:
            self._replace(symbol, self.algebra.integer(int(low)))

    # simplification
    def simplify(self, expr: Expr) -> Expr:
        """`expr` under everything known."""
        if not expr.symbols:
            return expr
        found = self._simplified.get(expr)
        if found is None:
            replacement = self.replacements.get(expr)
            if replacement is not None:
                found = self.simplify(replacement)
            elif expr.kind == "symbol":
                found = expr
            else:
                found = self._by_range(self.algebra.rebuild(expr, self.simplify))
                if found is not expr:
                    found = self.simplify(found)
            self._simplified[expr] = found
        return found

    def _by_range(self, expr: Expr) -> Expr:
        """One rewrite that needs ranges, or `expr` itself."""
        kind = expr.kind
        if expr.type is bool:
            answer = self._settle(expr)
            if answer is not None:
                return self.algebra.boolean(answer)
            if kind == "not" and expr.args[0].kind == "eq0" and self.bounds(expr.args[0].args[0])[0] == 0:
                return self.algebra.ge0(self.algebra.add(expr.args[0].args[0], self.algebra.minus_one))
            if kind == "ge0":
                split = self._of_extreme(expr.args[0])
                if split is not None:
                    return split
            return self._without_positive_factor(expr) if kind in ("eq0", "ge0") else expr
        if kind in ("min", "max"):
            kept: list[Expr] = []
            for candidate in expr.args:
                kept = [other for other in kept if not self._beats(kind, candidate, other)]
                if not any(self._beats(kind, other, candidate) for other in kept):
                    kept.append(candidate)
            if len(kept) < len(expr.args):
                return self.algebra.apply(kind, *kept)
        elif kind == "floordiv":
            low, high = self.bounds(expr)
            if low == high:
                return self.algebra.integer(low)
            return self._merge_quotients(expr)
        elif kind in ("ite", "fite"):
            answer = self._settle(expr.args[0])
            if answer is not None:
                chosen: Expr = expr.args[1 if answer else 2]
                return chosen
        return expr

    def _of_extreme(self, operand: Expr) -> Expr | None:
        """max(p, q) + k >= 0 is p + k >= 0 or q + k >= 0, where all but one of these is settled; likewise `min`."""
        algebra = self.algebra
        monomial, factor = operand.terms[-1]
        atom = algebra.atoms[monomial[0]] if len(monomial) == 1 and factor in (1, -1) else None
        if atom is None or atom.kind not in ("min", "max"):
            return None
        rest = algebra.sub(operand, algebra.scale(atom, factor))
        if rest.constant is None:
            return None
        parts = [self.simplify(algebra.ge0(algebra.add(algebra.scale(arg, factor), rest))) for arg in atom.args]
        some = (atom.kind == "max") == (factor == 1)
        joined = (algebra.logical_or if some else algebra.logical_and)(*parts)
        return joined if joined.kind not in ("and", "or") else None

    def _without_positive_factor(self, comparison: Expr) -> Expr:
        """s * p >= 0 is p >= 0 for a positive s; so is s * p == 0."""
        operand = comparison.args[0]
        common = set(operand.terms[0][0]).intersection(*(monomial for monomial, _ in operand.terms))
        for number in sorted(common):
            if self.bounds(self.algebra.atoms[number])[0] > 0:
                quotient = self.algebra.exact_quotient(operand, self.algebra.atoms[number])
                if quotient is not None:
                    return self.algebra.apply(comparison.kind, quotient)
        return comparison

    def _beats(self, kind: str, winner: Expr, loser: Expr) -> bool:
        larger, smaller = (winner, loser) if kind == "max" else (loser, winner)
        return self._settle(self.algebra.ge(larger, smaller)) is True

    def _merge_quotients(self, expr: Expr) -> Expr:
        """(p // a) // b is p // (a * b) for a positive divisor b."""
        dividend, divisor = expr.args
        if dividend.kind == "floordiv" and self.bounds(divisor)[0] > 0:
            algebra = self.algebra
            return algebra.floordiv(dividend.args[0], algebra.mul(dividend.args[1], divisor))
        return expr

    def expand(self, expr: Expr) -> Expr:
        """`expr` without the symbols that were made for divisibilities."""
        if not self.definitions or not any(symbol in self.definitions for symbol in expr.symbols):
            return expr
        if expr.kind == "poly":
            expr = self._fold_definitions(expr)
        definition = self.definitions.get(expr)
        if definition is not None:
            return self.expand(definition)
        return self.algebra.rebuild(expr, self.expand)

    def _fold_definitions(self, expr: Expr) -> Expr:
        """d * t, where t is p // d and d divides p, is p."""
        algebra = self.algebra
        for number, dividend, divisor in reversed(self._definition_patterns):
            folded = algebra.zero
            for monomial, factor in expr.terms:
                rest, product = monomial, algebra.one
                while number in rest and factor % divisor == 0:
                    position = rest.index(number)
                    rest, factor = rest[:position] + rest[position + 1 :], factor // divisor
                    product = algebra.mul(product, dividend)
                folded = algebra.add(folded, algebra.mul(algebra.polynomial({rest: factor}), product))
            expr = folded
        return expr

    # questions
    def decide(self, question: Expr) -> bool | None:
        """Whether it holds, as far as that is known."""
        if question.kind == "true":
            return True
        if question.kind == "false":
            return False
        if question in self._decided:
            return self._decided[question]
        answer = self._settle(self.simplify(question))
        self._decided[question] = answer
        return answer

    def _settle(self, question: Expr) -> bool | None:
        """`decide` for a question that is simplified already."""
        kind = question.kind
        if kind in ("true", "false"):
            return kind == "true"
        answer = self.assumed.get(question)
        if answer is not None:
            return answer
        if kind == "ge0":
            return self._settle_order(question.args[0])
        if kind == "eq0":
            low, high = self.bounds(question.args[0])
            if low > 0 or high < 0:
                return False
            return True if low == 0 == high else None
        if kind in ("and", "or"):
            answers = [self._settle(arg) for arg in question.args]
            stop = kind == "or"
            if stop in answers:
                return stop
            return None if None in answers else not stop
        if kind == "not":
            inner = self._settle(question.args[0])
            return None if inner is None else not inner
        if kind in ("flt", "fle", "feq"):
            return self._settle_float_order(kind, *question.args)
        return None

    def _settle_order(self, operand: Expr) -> bool | None:
        low, high = self.bounds(operand)
        if low >= 0:
            return True
        if high < 0:
            return False
        if len(operand.terms) - (not operand.terms[0][0]) < 2:
            return None  # one term: its bounds say all that one comparison could
        algebra = self.algebra
        for answer in (True, False):
            # operand >= 0 follows from base + k >= 0 if operand - base - k >= 0; its negation likewise
            goal = operand if answer else algebra.add(algebra.negate(operand), algebra.minus_one)
            for base, offset in list(self.known.items())[-_FACTS_TRIED:]:
                if base.symbols & operand.symbols:
                    rest = algebra.sub(goal, algebra.add(base, algebra.integer(offset)))
                    if len(rest.terms) <= len(goal.terms) and self.bounds(rest)[0] >= 0:
                        return answer
        return None

    def _settle_float_order(self, kind: str, left: Expr, right: Expr) -> bool | None:
        for side in (left, right):
            if side.kind not in ("to_float", "truediv") and side.constant is None:
                return None  # may be a NaN
        (low, high), (least, most) = self.bounds(left), self.bounds(right)
        if kind == "feq":
            return False if low > most or high < least else None
        if kind == "flt":
            return True if high < least else False if low >= most else None
        return True if high <= least else False if low > most else None

    # learning
    def learn(self, truth: Expr) -> None:
        """From now on `truth` holds."""
        truth = self.simplify(truth)
        if truth.kind == "true":
            return
        if truth.kind == "false":
            raise Contradiction("a condition that cannot hold was assumed")
        if truth.kind == "and":
            for part in truth.args:
                self.learn(part)
            return
        self.assumed[truth] = True
        self.assumed[self.algebra.logical_not(truth)] = False
        if truth.kind == "ge0":
            self._learn_order(truth.args[0])
        elif truth.kind == "eq0":
            self._learn_equality(truth.args[0])
        elif truth.kind == "not" and truth.args[0].kind == "eq0":
            self._learn_difference(truth.args[0].args[0])
        self.forget_caches()
        self._propagate(truth.symbols)

    def forget_caches(self) -> None:
        """Answers found before a new fact may be too weak now."""
        self._simplified.clear()
        self._bounds.clear()
        self._decided.clear()

    def _learn_order(self, operand: Expr) -> None:
        offset = operand.terms[0][1] if not operand.terms[0][0] else 0
        base = self.algebra.add(operand, self.algebra.integer(-offset))
        self.known[base] = min(offset, self.known.get(base, offset))

    def _learn_difference(self, operand: Expr) -> None:
        low, high = self.bounds(operand)
        algebra = self.algebra
        if low == 0:
            self._learn_order(algebra.add(operand, algebra.minus_one))
        if high == 0:
            self._learn_order(algebra.add(algebra.negate(operand), algebra.minus_one))

    def _learn_equality(self, operand: Expr) -> None:
        algebra = self.algebra
        solved = self._solve(operand)
        if solved is not None:
            self._replace(*solved)
            return
        divided = self._divisibility(operand)
        if divided is not None:
            dividend, divisor = divided
            inner = self._solve(dividend)
            if inner is not None:
                symbol, rest = inner  # dividend = 0 would be symbol = rest; dividend = d * t is symbol = rest +- d * t
                sign = dict(dividend.terms)[symbol.terms[0][0]]
                quotient = algebra.floordiv(dividend, algebra.integer(divisor))
                fresh = algebra.symbol(f"q{len(self.definitions)}")
                self.definitions[fresh] = quotient
                self._definition_patterns.append((fresh.terms[0][0][0], dividend, divisor))
                self.ranges[fresh] = self.bounds(quotient)
                self._replace(symbol, algebra.add(rest, algebra.scale(fresh, sign * divisor)))
                return
        self._learn_order(operand)
        self._learn_order(algebra.negate(operand))

    def _solve(self, operand: Expr) -> tuple[Expr, Expr] | None:
        """`(atom, value)` from `operand == 0`: the youngest symbol, unbacked first, else the youngest opaque atom."""
        algebra = self.algebra
        best: tuple[tuple[bool, bool, int], Expr, int] | None = None
        for monomial, factor in operand.terms:
            if len(monomial) != 1 or factor not in (1, -1):
                continue
            atom = algebra.atoms[monomial[0]]
            rest = [algebra.atoms[n] for other, _ in operand.terms if other != monomial for n in other]
            if any(other is atom or (atom.symbols & other.symbols) for other in rest):
                continue
            rank = (atom in self.eliminate_first, atom.kind == "symbol", atom.number)
            if best is None or rank > best[0]:
                best = (rank, atom, factor)
        if best is None:
            return None
        _, atom, factor = best
        return atom, algebra.scale(algebra.sub(operand, algebra.scale(atom, factor)), -factor)

    def _divisibility(self, operand: Expr) -> tuple[Expr, int] | None:
        """`(p, d)` if `operand` is `p % d` or its negative, for a positive constant d."""
        algebra = self.algebra
        for monomial, factor in operand.terms:
            atom = algebra.atoms[monomial[0]] if len(monomial) == 1 else None
            if atom is None or atom.kind != "floordiv":
                continue
            by = atom.args[1].constant
            if by is None or by <= 0 or abs(factor) != by:
                continue
            remainder = algebra.sub(atom.args[0], algebra.scale(atom, by))
            if operand in (remainder, algebra.negate(remainder)):
                dividend = atom.args[0]
                if len(dividend.terms) == 1 and math.gcd(dividend.terms[0][1], by) == 1:  # c * p by d: p by d
                    dividend = algebra.polynomial({dividend.terms[0][0]: 1})
                return dividend, by
        return None

    def _replace(self, atom: Expr, value: Expr) -> None:
        """`atom` stands for `value`; what was known of its range is known of `value`."""
        low, high = self.bounds(atom)
        self.replacements[atom] = value
        self.forget_caches()
        algebra = self.algebra
        constant = value.constant
        if constant is not None:
            if not low <= constant <= high:
                raise Contradiction("a value outside of its range was assumed")
            if atom.kind == "symbol":
                self.ranges[atom] = (constant, constant)
                self.fixed.append(atom)
            return
        if low != -INF:
            self.learn(algebra.ge0(algebra.sub(value, algebra.integer(low))))
        if high != INF:
            self.learn(algebra.ge0(algebra.sub(algebra.integer(high), value)))

    def _propagate(self, touched: frozenset[Expr]) -> None:
        """Narrow the ranges of symbols by the comparisons that share one with what changed, a few rounds."""
        for _ in range(_ROUNDS):
            if not touched:
                return
            before = dict(self.ranges)
            for base, offset in list(self.known.items()):
                if base.symbols & touched:
                    self._narrow(self.simplify(self.algebra.add(base, self.algebra.integer(offset))))
            changed = [atom for atom, bounds in self.ranges.items() if before.get(atom) != bounds]
            touched = frozenset().union(*(atom.symbols for atom in changed))

    def _narrow(self, operand: Expr) -> None:
        """Use `operand >= 0` to narrow the range of each atom that stands alone in a term."""
        for monomial, factor in operand.terms:
            if not monomial:
                continue
            rest_high: Bound = 0
            for other, value in operand.terms:
                if other != monomial:
                    rest_high = plus_high(rest_high, product(self._bounds_of_monomial(other), (value, value))[1])
            if rest_high == INF:
                continue
            if len(monomial) > 1:
                if factor > 0 and rest_high < 0:
                    self._narrow_factors(monomial)
                continue
            atom = self.algebra.atoms[monomial[0]]
            low, high = self.bounds(atom)
            if factor > 0:  # factor * atom >= -rest
                low = max(low, -(rest_high // factor))
            else:
                high = min(high, rest_high // -factor)
            self._set_range(atom, low, high)

    def _narrow_factors(self, monomial: Monomial) -> None:
        """A positive product of factors that are not negative has no zero factor."""
        atoms = [self.algebra.atoms[number] for number in monomial]
        if any(self.bounds(atom)[0] < 0 for atom in atoms):
            return
        for atom in atoms:
            low, high = self.bounds(atom)
            self._set_range(atom, max(low, 1), high)

    def _set_range(self, atom: Expr, low: Bound, high: Bound) -> None:
        if (low, high) == self.bounds(atom):
            return
        if low > high:
            raise Contradiction("two comparisons that cannot both hold were assumed")
        self.ranges[atom] = (low, high)
        self.forget_caches()
        if low == high and atom not in self.replacements:
            self._replace(atom, self.algebra.integer(int(low)))
