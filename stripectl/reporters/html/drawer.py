"""Draws charts in a process of its own, because the chart library ends its process where memory is short: it reserves
64 GiB of addresses, more than any `ulimit -v` of a login node.

The program reads one chart a line, as JSON, and answers with one line. It is run as a file, with the folder of the
library as its argument and nothing else on its path.
"""

import json
import sys


def draw_lines() -> None:
    sys.path.append(sys.argv[1])
    import vl_convert

    vl_convert.vegalite_to_svg({"mark": "point"})  # the library starts while the first chart is made
    for line in sys.stdin:
        try:
            answer = {"svg": vl_convert.vegalite_to_svg(json.loads(line))}
        except ValueError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    draw_lines()
