const paths = {
  menu: "M4 7h16M4 12h16M4 17h10",
  settings: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  again: "M4 12a8 8 0 1 1 2.5 5.8M4 19v-4h4",
  edit: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  trash: "M5 7h14M9 7V5h6v2M7 7l1 12h8l1-12",
  close: "M6 6l12 12M18 6L6 18",
  down: "M7 10l5 5 5-5",
  check: "M5 13l4 4L19 7",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
};

export function Icon({ name }: { name: keyof typeof paths }) {
  return (
    <svg class="glyph" viewBox="0 0 24 24" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}
