"""Parts of an answer that are not as asked, which marked figures depend on."""

from stripectl.analysis.distortions import MARK, distortion_sentences
from stripectl.analysis.note import Note
from stripectl.results.run import Run


def distortions_of_timed_plans(run: Run) -> list[str]:
    return distortion_sentences(m for m in run.results if m.status == "ok")


note = Note(label=MARK, find=distortions_of_timed_plans, order=60, shown_only=True, most=3)
