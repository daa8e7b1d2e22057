# Light colours of architecture.svg -> dark ones.
s/\.page { fill: #ffffff/.page { fill: #0d1117/
s/#f4f6f8/#161b22/
s/#c5ccd3/#3d444d/
s/\.box { fill: #ffffff; stroke: #8592a0/.box { fill: #212830; stroke: #768390/
s/#e3f3e6; stroke: #2e7d4f/#12361f; stroke: #3fb950/
s/#1b2733/#f0f6fc/
s/#566371/#a4afba/
s/#0b5cad/#6cb6ff/
s/#4a5865/#9aa6b2/
