"""The mutants are run by ``make faults ARGS=mutants``; here, that each still finds the code that it breaks."""

import pytest

from tests.deduplication.journal.mutants import CORE, MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_mutant_breaks_one_place(mutant: Mutant) -> None:
    assert (ROOT / CORE / mutant.file).read_text().count(mutant.old) == 1
