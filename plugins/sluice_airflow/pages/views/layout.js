/** Where the nodes of a declared graph stand: a column for each distance from the sources. */

const WIDTH = 230;
const HEIGHT = 190;
const GAP_X = 70;
const GAP_Y = 24;

export const BOX = { width: WIDTH, height: HEIGHT };

export function layout(nodes, edges) {
  const columns = columnsOf(nodes, edges);
  const places = new Map();
  const filled = [];
  for (const node of nodes) {
    const column = columns.get(node.uid);
    const row = (filled[column] = (filled[column] ?? 0) + 1) - 1;
    places.set(node.uid, { x: column * (WIDTH + GAP_X), y: row * (HEIGHT + GAP_Y) });
  }
  const most = Math.max(1, ...filled.map((many) => many ?? 0));
  return {
    places,
    width: filled.length * (WIDTH + GAP_X) - GAP_X,
    height: most * (HEIGHT + GAP_Y) - GAP_Y,
  };
}

function columnsOf(nodes, edges) {
  const columns = new Map(nodes.map(({ uid }) => [uid, 0]));
  for (let round = 0; round < nodes.length; round += 1) {
    for (const { producer, consumer } of edges) {
      columns.set(consumer, Math.max(columns.get(consumer) ?? 0, (columns.get(producer) ?? 0) + 1));
    }
  }
  return columns;
}

/** A curve from the right side of one box to the left side of another. */
export function curve(from, to) {
  const [x1, y1] = [from.x + WIDTH, from.y + HEIGHT / 2];
  const [x2, y2] = [to.x - 6, to.y + HEIGHT / 2];
  const bend = Math.max(30, (x2 - x1) / 2);
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}
