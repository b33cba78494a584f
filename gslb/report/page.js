document.body.classList.remove('still');
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
    part.addEventListener('click', () => { kept = kept === name ? null : name; pick(kept); });
    part.addEventListener('keydown', (event) => { if (event.key === 'Enter') { part.dispatchEvent(new Event('click')); } });
  }
}
