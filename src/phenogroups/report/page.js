"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text; // text, never markup: a subject may be called anything
    if (parent) parent.append(element);
    return element;
  };
  // cividis, told apart by colour-blind readers
  const RAMP = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  const ramp = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
    const low = Math.min(Math.floor(at), RAMP.length - 2);
    return `rgb(${RAMP[low].map((c, i) => Math.round(c + (at - low) * (RAMP[low + 1][i] - c))).join(",")})`;
  };

  // as many pixels as the screen has; drawn on again whenever the page changes its width
  const fit = (canvas, shape, draw) => {
    const resize = () => {
      const width = canvas.clientWidth, height = Math.round(width * shape), dense = window.devicePixelRatio || 1;
      if (!width) return;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
      const pen = canvas.getContext("2d");
      pen.setTransform(dense, 0, 0, dense, 0, 0);
      draw(pen, width, height);
    };
    let before = 0;
    new ResizeObserver(() => {
      if (canvas.clientWidth !== before) { before = canvas.clientWidth; resize(); }
    }).observe(canvas);
    return resize;
  };

  const mark = (pen, shape, x, y, r) => {
    pen.beginPath();
    if (shape === "s") pen.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
    else if (shape === "^" || shape === "v") {
      const up = shape === "^" ? 1 : -1;
      pen.moveTo(x, y - up * r * 1.2); pen.lineTo(x + r * 1.1, y + up * r * 0.8); pen.lineTo(x - r * 1.1, y + up * r * 0.8);
      pen.closePath();
    } else if (shape === "D") {
      pen.moveTo(x, y - r * 1.3); pen.lineTo(x + r * 1.3, y); pen.lineTo(x, y + r * 1.3); pen.lineTo(x - r * 1.3, y);
      pen.closePath();
    } else if (shape === "P") {
      pen.rect(x - r * 0.4, y - r * 1.2, r * 0.8, r * 2.4); pen.rect(x - r * 1.2, y - r * 0.4, r * 2.4, r * 0.8);
    } else if (shape === "X") {
      pen.moveTo(x - r, y - r); pen.lineTo(x + r, y + r); pen.moveTo(x + r, y - r); pen.lineTo(x - r, y + r);
    } else pen.arc(x, y, r, 0, 2 * Math.PI);
    if (shape === "open" || shape === "X") { pen.lineWidth = 1.4; pen.stroke(); } else pen.fill();
  };
  const paint = (pen, style, x, y, r) => {
    pen.fillStyle = pen.strokeStyle = style.colour;
    mark(pen, style.shape, x, y, r);
  };
  const swatch = (style, parent) => {
    const canvas = make("canvas", undefined, parent);
    canvas.width = canvas.height = 28;
    canvas.setAttribute("aria-hidden", "true");
    const pen = canvas.getContext("2d");
    pen.scale(2, 2);
    paint(pen, style, 7, 7, 4.5);
  };

  // how each subject looks under a way of colouring; numbers keep the shape of a dot
  const lookOf = (way, i) => way.styles
    ? way.styles[way.values[i]]
    : { colour: way.numbers[i] === null ? "#666666" : ramp(way.numbers[i]), shape: way.numbers[i] === null ? "open" : "o" };

  const writeLegend = (list, way, isShown) => {
    list.replaceChildren();
    if (!way.styles) {
      const item = make("li", undefined, list);
      make("span", way.low, item);
      make("span", undefined, item).className = "ramp";
      item.children[1].style.background = `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(ramp).join(",")})`;
      make("span", way.high, item);
      return;
    }
    const counts = way.styles.map(() => 0);
    way.values.forEach((value, i) => { if (isShown(i)) counts[value] += 1; });
    way.styles.forEach((style, k) => {
      if (!counts[k]) return;
      const item = make("li", undefined, list);
      swatch(style, item);
      make("span", `${style.name} (${counts[k]})`, item);
    });
  };

  const sheet = data.sheet ? new Image() : null;
  if (sheet) sheet.src = data.sheet.url;

  const showSubject = (box, i) => {
    box.replaceChildren();
    const who = data.rows[i][0];
    if (sheet) {
      const { width, height, columns } = data.sheet;
      const canvas = make("canvas", undefined, box);
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Image of ${who}`);
      canvas.width = width; canvas.height = height;
      canvas.style.height = `${Math.round(Math.min(130, 240 * height / width))}px`;
      const put = () => canvas.getContext("2d").drawImage(
        sheet, (i % columns) * width, Math.floor(i / columns) * height, width, height, 0, 0, width, height);
      if (sheet.complete) put(); else sheet.addEventListener("load", put, { once: true });
    }
    if (data.bars) drawBars(box, data.bars.names, data.bars.values[i], who);
    const table = make("table", undefined, box);
    data.columns.forEach((name, j) => {
      if (data.rows[i][j] === "") return;
      const row = make("tr", undefined, table);
      make("th", name.replaceAll("_", " "), row).scope = "row";
      make("td", data.rows[i][j], row);
    });
  };
  const drawBars = (box, names, values, who) => {
    const canvas = make("canvas", undefined, box), high = 16, wide = 250;
    canvas.className = "profile";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Profile of ${who}: ${names.map((name, j) => `${name} ${values[j]}`).join(", ")}`);
    canvas.width = 2 * wide; canvas.height = 2 * high * names.length;
    const pen = canvas.getContext("2d"), most = Math.max(1e-9, ...values.map(Math.abs)), half = wide * 0.25, middle = wide * 0.74;
    pen.scale(2, 2);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    names.forEach((name, j) => {
      const y = high * j, long = values[j] / most * half;
      pen.fillStyle = "#1b2430";
      pen.fillText(name, 0, y + high / 2, wide * 0.47);
      pen.fillStyle = "#4b5766"; // the side says the sign
      pen.fillRect(Math.min(middle, middle + long), y + 3, Math.abs(long), high - 6);
    });
    pen.fillStyle = "#4b5766";
    pen.fillRect(middle, 0, 0.7, high * names.length);
  };

  // a cloud of points that can be pointed at, walked through by keys and, with three axes, turned
  const cloud = (canvas, shape, state, onPick) => {
    let places = [], turn = { yaw: 0.6, pitch: 0.35 };
    const place = (point, width, height) => {
      let [x, y, z] = point;
      const half = Math.min(width, height) / 2, space = state.solid() ? 1.5 : 1.06;
      if (state.solid()) {
        const cy = Math.cos(turn.yaw), sy = Math.sin(turn.yaw), cp = Math.cos(turn.pitch), sp = Math.sin(turn.pitch);
        [x, z] = [x * cy + z * sy, z * cy - x * sy];
        [y, z] = [y * cp - z * sp, z * cp + y * sp];
      } else z = 0;
      const scale = half / (1000 * space);
      return [width / 2 + x * scale, height / 2 - y * scale, z];
    };
    const draw = (pen, width, height) => {
      pen.clearRect(0, 0, width, height);
      const points = state.points(), way = state.way(), r = points.length > 1200 ? 2.6 : 3.4;
      places = points.map((point, i) => state.isShown(i) ? place(point, width, height) : null);
      const order = places.map((_, i) => i).filter((i) => places[i]);
      // controls lie under patients; in space, who is behind lies under who is before
      order.sort((a, b) => state.solid() ? places[a][2] - places[b][2] : state.depth(b) - state.depth(a));
      for (const i of order) {
        pen.globalAlpha = state.depth(i) ? 0.6 : 0.85;
        const near = state.solid() ? 1 + places[i][2] / 4000 : 1;
        paint(pen, lookOf(way, i), places[i][0], places[i][1], r * near);
      }
      pen.globalAlpha = 1;
      const i = state.picked();
      if (i !== null && places[i]) {
        pen.strokeStyle = "#000000"; pen.lineWidth = 2;
        pen.beginPath(); pen.arc(places[i][0], places[i][1], r + 4, 0, 2 * Math.PI); pen.stroke();
      }
    };
    const redraw = fit(canvas, shape, draw);
    const nearest = (x, y, reach) => {
      let best = null, least = reach * reach;
      places.forEach((p, i) => {
        if (!p) return;
        const d = (p[0] - x) ** 2 + (p[1] - y) ** 2;
        if (d < least) { least = d; best = i; }
      });
      return best;
    };
    const step = (dx, dy) => {
      const from = state.picked() === null ? null : places[state.picked()];
      if (!from) return nearest(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity);
      let best = state.picked(), least = Infinity;
      places.forEach((p, i) => {
        if (!p || i === state.picked()) return;
        const along = (p[0] - from[0]) * dx + (p[1] - from[1]) * dy;
        const aside = Math.abs((p[0] - from[0]) * dy) + Math.abs((p[1] - from[1]) * dx);
        if (along > 0.01 && aside <= along * 2 && along + 2 * aside < least) { least = along + 2 * aside; best = i; }
      });
      return best;
    };
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (state.solid()) { drag = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); }
    });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        turn.yaw += (event.clientX - drag[0]) / 120; turn.pitch += (event.clientY - drag[1]) / 120;
        drag = [event.clientX, event.clientY];
        redraw();
        return;
      }
      const box = canvas.getBoundingClientRect();
      const i = nearest(event.clientX - box.left, event.clientY - box.top, 14);
      if (i !== null && i !== state.picked()) onPick(i);
    });
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const i = nearest(event.clientX - box.left, event.clientY - box.top, 24);
      if (i !== null) onPick(i);
    });
    canvas.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!way) return;
      event.preventDefault();
      if (event.shiftKey && state.solid()) {
        turn.yaw += way[0] * 0.15; turn.pitch += way[1] * 0.15;
        redraw();
      } else {
        const i = step(way[0], way[1]);
        if (i !== null) onPick(i);
      }
    });
    return redraw;
  };

  const explore = () => {
    const colour = find("colour"), view = find("view"), controls = find("controls");
    const views = [["2-D, principal axes", data.points, false], ["3-D, principal axes", data.points, true]];
    if (data.umap) views.push(["2-D, UMAP", data.umap, false]);
    data.colours.forEach((way, k) => { make("option", way.name, colour).value = k; });
    views.forEach(([name], k) => { make("option", name, view).value = k; });
    let picked = null;
    const isShown = (i) => controls.checked || !data.control[i];
    const state = {
      points: () => views[view.value][1], solid: () => views[view.value][2], way: () => data.colours[colour.value],
      isShown, depth: (i) => data.control[i], picked: () => picked,
    };
    const redraw = cloud(find("embedding"), 0.82, state, (i) => {
      picked = i;
      showSubject(find("subject"), i);
      redraw();
    });
    const update = () => {
      writeLegend(find("legend"), state.way(), isShown);
      find("embedding").dataset.shown = data.control.filter((_, i) => isShown(i)).length;
      redraw();
    };
    for (const element of [colour, view, controls]) element.addEventListener("change", update);
    update();
  };

  const project = () => {
    const film = data.film, slider = find("frame"), play = find("play"), last = film.frames.length - 1;
    const gray = { name: "Controls", colour: "#b5b5b5", shape: "o" };
    const styles = [gray, ...film.styles], label = film.label.map((k) => k + 1);
    const order = label.map((_, i) => i).sort((a, b) => label[a] - label[b]); // controls first, so under all
    let at = 0, playing = null;
    slider.max = last;
    const drawFrame = (pen, width, height) => {
      pen.clearRect(0, 0, width, height);
      const low = Math.floor(at), high = Math.min(low + 1, last), share = at - low, scale = Math.min(width, height) / 2120;
      for (const i of order) {
        const x = film.frames[low][i][0] * (1 - share) + film.frames[high][i][0] * share;
        const y = film.frames[low][i][1] * (1 - share) + film.frames[high][i][1] * share;
        pen.globalAlpha = label[i] ? 0.85 : 0.6;
        paint(pen, styles[label[i]], width / 2 + x * scale, height / 2 - y * scale, 3);
      }
      pen.globalAlpha = 1;
    };
    const known = film.ratio.some((value) => value !== null);
    const drawRatio = (pen, width, height) => {
      pen.clearRect(0, 0, width, height);
      const values = film.ratio.filter((v) => v !== null), most = Math.max(1.2, ...values) * 1.05, least = Math.min(0.9, ...values);
      const left = 44, bottom = height - 40, top = 26, right = width - 14, first = film.epochs[0], end = film.epochs[last];
      const x = (epoch) => left + (epoch - first) / Math.max(end - first, 1) * (right - left);
      const y = (value) => bottom - (value - least) / (most - least) * (bottom - top);
      pen.font = "12px system-ui, sans-serif"; pen.fillStyle = "#1b2430";
      pen.textAlign = "left"; pen.fillText("distance ratio", 6, 16);
      pen.textAlign = "center"; pen.fillText("epoch", (left + right) / 2, height - 6);
      pen.fillText(first, x(first), bottom + 16); pen.fillText(end, x(end), bottom + 16);
      pen.textAlign = "right"; pen.fillText(most.toFixed(1), left - 6, y(most) + 8); pen.fillText("1", left - 6, y(1) + 4);
      pen.strokeStyle = "#4b5766"; pen.lineWidth = 1; pen.setLineDash([4, 4]);
      pen.beginPath(); pen.moveTo(left, y(1)); pen.lineTo(right, y(1)); pen.stroke(); pen.setLineDash([]);
      pen.strokeStyle = "#000000"; pen.lineWidth = 2; pen.beginPath();
      let begun = false;
      film.ratio.forEach((value, k) => {
        if (value === null) return;
        if (begun) pen.lineTo(x(film.epochs[k]), y(value)); else pen.moveTo(x(film.epochs[k]), y(value));
        begun = true;
      });
      pen.stroke();
      const now = Math.round(at);
      if (film.ratio[now] !== null) {
        pen.fillStyle = "#000000"; pen.beginPath(); pen.arc(x(film.epochs[now]), y(film.ratio[now]), 6, 0, 2 * Math.PI); pen.fill();
      }
    };
    const redraws = [fit(find("film"), 0.8, drawFrame)];
    if (known) redraws.push(fit(find("ratio"), 0.8, drawRatio));
    else { find("ratio").remove(); find("film").parentElement.classList.add("alone"); }
    const show = (where) => {
      at = where;
      const now = Math.round(at), ratio = film.ratio[now];
      slider.value = now;
      const words = `epoch ${film.epochs[now]}` + (ratio === null ? "" : `, distance ratio ${ratio.toFixed(2)}`);
      find("epoch").textContent = words;
      slider.setAttribute("aria-valuetext", words);
      redraws.forEach((redraw) => redraw());
    };
    const stop = () => { cancelAnimationFrame(playing); playing = null; play.textContent = "Play"; play.setAttribute("aria-pressed", "false"); };
    play.addEventListener("click", () => {
      if (playing !== null) return stop();
      const began = performance.now(), from = at >= last ? 0 : at, pace = Math.min(700, 12000 / Math.max(last, 1));
      play.textContent = "Pause"; play.setAttribute("aria-pressed", "true");
      const tick = (time) => {
        show(Math.min(last, from + Math.max(0, time - began) / pace));
        if (at >= last) stop(); else playing = requestAnimationFrame(tick);
      };
      playing = requestAnimationFrame(tick);
    });
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    writeLegend(find("film-legend"), { styles, values: label }, () => true);
    show(0);
  };

  // one cloud for each method, all of the same subjects: whoever is pointed at is marked in all
  const beside = () => {
    const colour = find("colour");
    data.colours.forEach((way, k) => { make("option", way.name, colour).value = k; });
    let picked = null;
    const redraws = data.methods.map((method, k) => cloud(find(`method-${k}`), 0.9, {
      points: () => method.points, solid: () => false, way: () => data.colours[colour.value], isShown: () => true,
      depth: (i) => data.control[i], picked: () => picked,
    }, (i) => {
      picked = i;
      showSubject(find("subject"), i);
      redraws.forEach((redraw) => redraw());
    }));
    const update = () => {
      writeLegend(find("legend"), data.colours[colour.value], () => true);
      redraws.forEach((redraw) => redraw());
    };
    colour.addEventListener("change", update);
    update();
  };

  // a picture enlarged over the page; arrows go through its gallery, Escape or a click closes it
  const enlarge = () => {
    const dialog = make("dialog", undefined, document.body), image = make("img", undefined, dialog), words = make("p", undefined, dialog);
    const controls = make("div", undefined, dialog);
    image.alt = "Enlarged picture";
    controls.className = "controls";
    words.setAttribute("aria-live", "polite");
    let buttons = [], at = 0;
    const show = (k) => {
      at = (k + buttons.length) % buttons.length;
      const small = buttons[at].querySelector("img");
      image.src = small.src; image.alt = small.alt;
      dialog.className = buttons[at].closest(".pixels") ? "pixels" : "";
      dialog.style.setProperty("--aspect", small.naturalWidth / small.naturalHeight);
      words.textContent = `${small.alt} (${at + 1} of ${buttons.length})`;
    };
    // at once: the event "close" comes later, and a key that is pressed in between would go to the picture shown first
    const leave = () => { dialog.close(); focus(buttons, at); };
    for (const [name, act] of [["Previous", () => show(at - 1)], ["Close", leave], ["Next", () => show(at + 1)]]) {
      const button = make("button", name, controls);
      button.type = "button";
      button.addEventListener("click", act);
    }
    image.addEventListener("click", leave);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) leave(); });
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); leave(); });  // Escape, and other ways to go back
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") show(at - 1); else if (event.key === "ArrowRight") show(at + 1);
    });
    const focus = (all, k) => {
      all.forEach((button, i) => { button.tabIndex = i === k ? 0 : -1; });
      all[k].focus();
    };
    for (const gallery of document.querySelectorAll(".gallery")) {
      const all = [...gallery.querySelectorAll(".enlarge")];
      all.forEach((button, k) => {
        button.addEventListener("click", () => { buttons = all; show(k); dialog.showModal(); });
        button.addEventListener("keydown", (event) => {
          const step = { ArrowLeft: -1, ArrowRight: 1, Home: -k, End: all.length - 1 - k }[event.key];
          if (step === undefined) return;
          event.preventDefault();
          focus(all, Math.min(Math.max(k + step, 0), all.length - 1));
        });
      });
    }
  };

  if (document.querySelector(".gallery")) enlarge();
  if (find("embedding")) explore();
  if (find("film")) project();
  if (find("method-0")) beside();
})();
