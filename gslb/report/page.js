// Without this script everything is shown, one part after the other.
document.body.classList.remove('still');

// Each group of buttons shows the panel of the one that is down.
for (const group of document.querySelectorAll('.switch')) {
  const show = () => {
    const wanted = group.querySelector('input:checked').value;
    for (const panel of document.querySelectorAll('[data-of="' + group.id + '"]')) {
      panel.hidden = panel.dataset.panel !== wanted;
    }
  };
  group.addEventListener('change', show);
  show();
}

// Pointing at a line or its key lights up both; a click keeps it so.
for (const figure of document.querySelectorAll('figure')) {
  let kept = null;
  const pick = (name) => {
    figure.classList.toggle('picked', name !== null);
    for (const part of figure.querySelectorAll('[data-series]')) {
      part.classList.toggle('on', part.dataset.series === name);
    }
  };
  for (const part of figure.querySelectorAll('[data-series]')) {
    const name = part.dataset.series;
    part.addEventListener('mouseenter', () => pick(name));
    part.addEventListener('mouseleave', () => pick(kept));
    const keep = () => {
      kept = kept === name ? null : name;
      pick(kept);
    };
    part.addEventListener('click', keep);
    part.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') {
        keep();
      }
    });
  }
}
